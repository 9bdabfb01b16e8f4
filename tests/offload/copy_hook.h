// The CPU device, but for the copies of its streams of one name: a hook comes before each of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "device/device.h"
#include "device/host_pages.h"

namespace so::test {

// Called when a copy is enqueued on `stream`; false: the copy is left out.
using CopyHook = std::function<bool(Stream& stream)>;

class HookedStream final : public Stream {
 public:
  HookedStream(Device& device, std::unique_ptr<Stream> inner, const CopyHook& hook)
      : device_(device), inner_(std::move(inner)), hook_(hook) {}
  Device& device() const override { return device_; }
  std::string_view name() const override { return inner_->name(); }
  void record(Event& event) override { inner_->record(event); }
  void wait(Event& event) override { inner_->wait(event); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (hook_(*inner_)) inner_->copy(to, from, bytes);
  }
  void zero(void* to, std::size_t bytes) override { inner_->zero(to, bytes); }
  void yield() override { inner_->yield(); }
  void host(std::string_view name, std::function<void()> function) override { inner_->host(name, std::move(function)); }
  void await(std::string_view name, std::function<void()> function) override {
    inner_->await(name, std::move(function));
  }
  void synchronize() override { inner_->synchronize(); }

 private:
  Device& device_;
  const std::unique_ptr<Stream> inner_;
  const CopyHook& hook_;
};

// All streams of that name share the hook.
class HookedDevice : public Device {
 public:
  HookedDevice(Device& inner, std::string stream, CopyHook hook)
      : inner_(inner), stream_(std::move(stream)), hook_(std::move(hook)) {}
  DeviceKind kind() const override { return inner_.kind(); }
  std::string name() const override { return inner_.name(); }
  bool backed() const override { return true; }
  std::unique_ptr<Stream> create_stream(std::string name) override {
    const bool hooked = name == stream_;
    auto stream = inner_.create_stream(std::move(name));
    if (hooked) stream = std::make_unique<HookedStream>(*this, std::move(stream), hook_);
    return stream;
  }
  std::unique_ptr<Event> create_event(Timing timing, Waiting waiting) override {
    return inner_.create_event(timing, waiting);
  }

 protected:
  void* allocate_memory(MemoryKind, std::size_t bytes, const Touch&) override { return map_host_pages(bytes); }
  void free_memory(MemoryKind, void* data, std::size_t bytes) noexcept override { unmap_host_pages(data, bytes); }

 private:
  Device& inner_;
  const std::string stream_;
  const CopyHook hook_;
};

}  // namespace so::test
