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
  explicit FakeGpu(std::size_t free, bool shares = false) : free_(free), shares_(shares) {}
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return "Fake GPU"; }
  bool backed() const override { return false; }
  bool shares_memory() const override { return shares_; }
  std::optional<OwnMemory> own_memory() const override {
    return shares_ ? std::nullopt : std::optional(OwnMemory{free_ + 5, free_});
  }
  std::unique_ptr<Stream> create_stream(std::string) override { return nullptr; }
  std::unique_ptr<Event> create_event(Timing, Waiting) override { return nullptr; }

 protected:
  void* allocate_memory(MemoryKind, std::size_t, const Touch&) override { return this; }
  void free_memory(MemoryKind, void*, std::size_t) noexcept override {}

 private:
  std::size_t free_;
  bool shares_;
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

TEST(MemoryRoom, IsOneMemoryLessAMarginWhereAGpuSharesTheCpus) {
  FakeGpu shared(0, true);
  const MemoryRoom room = room_of(shared);
  EXPECT_FALSE(room.device);
  EXPECT_LT(room.host.available, available_host_memory().available * 0.97);
  expect_in(room.host.limited_by, {"which GPU and CPU share, less "});
  // Memory of both kinds counts, and one limit holds for both.
  MemoryPlan plan;
  plan.add(MemoryKind::device, "weights", room.host.available);
  EXPECT_FALSE(room.misfit(plan));
  plan.add(MemoryKind::pinned, "ring", 4096);
  expect_in(std::string(room.misfit(plan, {"device", "use less"}).value().what()), {"weights", "use less"});
  shared.limit_memory({.host = 1000});
  const Buffer weights = shared.allocate(MemoryKind::device, 600, "weights");
  expect_in(refusal([&] { shared.allocate(MemoryKind::pinned, 401, "ring"); }), {"out of host memory", "1000 bytes"});
}

TEST(MemoryRoom, IsFixedWhereMemoryComesWithTheGpu) {
  const NumaNodes host, superchip{.superchip = true};
  for (const bool shares : {false, true}) {
    const FakeGpu gpu(1, shares);
    EXPECT_EQ(has_fixed_memory(backend_of(gpu), host), shares);
    EXPECT_TRUE(has_fixed_memory(backend_of(gpu), superchip));
  }
  EXPECT_FALSE(has_fixed_memory(cpu_backend(), host));
}

}  // namespace
}  // namespace so::test
