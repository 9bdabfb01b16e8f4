// A plan's memory is held against the memory that there is.
#include "plan/memory/memory_room.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "support/errors.h"

namespace so::test {
namespace {

// A device that says what memory it has.
class FakeGpu final : public Device {
 public:
  explicit FakeGpu(std::size_t free) : free_(free) {}
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return "Fake GPU"; }
  bool backed() const override { return false; }
  std::optional<OwnMemory> own_memory() const override { return OwnMemory{free_ + 5, free_}; }
  std::unique_ptr<Stream> create_stream(std::string) override { return nullptr; }
  std::unique_ptr<Event> create_event(Timing, Waiting) override { return nullptr; }

 protected:
  void* allocate_memory(MemoryKind, std::size_t, const Touch&) override { return this; }
  void free_memory(MemoryKind, void*, std::size_t) noexcept override {}

 private:
  std::size_t free_;
};

TEST(MemoryRoom, IsTheDevicesOwnMemoryAndTheHosts) {
  MemoryPlan plan;
  plan.add(MemoryKind::device, "weights", 700);
  plan.add(MemoryKind::device, "activations", 300);
  plan.add(MemoryKind::pinned, "ring", 10);
  FakeGpu enough(1000), short_of(999);
  EXPECT_FALSE(room_of(enough).misfit(plan).has_value());
  expect_in(std::string(room_of(short_of).misfit(plan, {"buy another", "host"}).value().what()),
            {"Fake GPU", "1000 bytes needed", "weights, 700 bytes", "999 bytes available", "buy another"});
  // Memory held already is in the plan, and does not count as missing.
  FakeGpu holding(999 - 64);
  const Buffer scratch = holding.allocate(MemoryKind::device, 65, "ops scratch");
  EXPECT_FALSE(room_of(holding).misfit(plan).has_value());
  plan.add(MemoryKind::pageable, "optimizer state", std::size_t{1} << 60);
  expect_in(std::string(room_of(enough).misfit(plan, {"device", "use less"}).value().what()),
            {"optimizer state", "use less"});
}

}  // namespace
}  // namespace so::test
