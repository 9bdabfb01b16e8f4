// A device with no memory behind it: allocation hands out addresses that nothing may touch, streams drop their work.
#include <atomic>

#include "base/error.h"
#include "device/device.h"

namespace so {
namespace {

class DryEvent final : public Event {
 public:
  void synchronize() override {}
  bool done() const override { return true; }
  double seconds_since(const Event&) const override { return 0; }
};

class DryStream final : public Stream {
 public:
  DryStream(Device& device, std::string name) : device_(device), name_(std::move(name)) {}
  Device& device() const override { return device_; }
  std::string_view name() const override { return name_; }
  void record(Event&) override {}
  void wait(Event&) override {}
  void copy(void*, const void*, std::size_t) override {}
  void zero(void*, std::size_t) override {}
  void yield() override {}
  void host(std::string_view, std::function<void()>) override {}
  void await(std::string_view, std::function<void()>) override {}
  void synchronize() override {}

 private:
  Device& device_;
  std::string name_;
};

class DryDevice final : public Device {
 public:
  DryDevice(DeviceKind kind, bool shares_memory) : kind_(kind), shares_memory_(shares_memory) {}
  DeviceKind kind() const override { return kind_; }
  bool shares_memory() const override { return shares_memory_; }
  std::string name() const override { return "dry run"; }
  bool backed() const override { return false; }
  std::unique_ptr<Stream> create_stream(std::string name) override {
    return std::make_unique<DryStream>(*this, std::move(name));
  }
  std::unique_ptr<Event> create_event(Timing, Waiting) override { return std::make_unique<DryEvent>(); }

 protected:
  void* allocate_memory(MemoryKind, std::size_t bytes, const Touch&) override {
    const std::uintptr_t rounded = (bytes + 4095) / 4096 * 4096;
    return reinterpret_cast<void*>(next_.fetch_add(rounded));
  }
  void free_memory(MemoryKind, void*, std::size_t) noexcept override {}

 private:
  const DeviceKind kind_;
  const bool shares_memory_;
  std::atomic<std::uintptr_t> next_{std::uintptr_t{1} << 44};
};

}  // namespace

std::unique_ptr<Device> make_dry_device(DeviceKind kind) { return make_dry_device(kind, kind == DeviceKind::cpu); }

std::unique_ptr<Device> make_dry_device(DeviceKind kind, bool shares_memory) {
  return std::make_unique<DryDevice>(kind, shares_memory);
}

}  // namespace so
