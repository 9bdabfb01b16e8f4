#include "device/device.h"

#include <utility>

#include "base/error.h"
#include "base/quantities.h"

namespace so {

Buffer::Buffer(Device& device, MemoryKind kind, std::string name, void* data, std::size_t bytes)
    : device_(&device), kind_(kind), name_(std::move(name)), data_(data), bytes_(bytes) {}

Buffer::~Buffer() {
  if (!data_) return;
  device_->free_memory(kind_, data_, bytes_);
  device_->ledger().remove(kind_, name_, bytes_);
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(kind_, other.kind_);
  std::swap(name_, other.name_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
}

void Device::limit_memory(const Limits& limits) {
  const std::lock_guard lock(mutex_);
  limits_ = limits;
}

std::unique_ptr<Stream> Device::wrap_stream(void*, std::string name) {
  SO_BUG("stream '{}': those of {} have no handles", name, this->name());
}

Buffer Device::allocate(MemoryKind kind, std::size_t bytes, std::string name, const Touch& touch) {
  if (bytes == 0) return {};
  const std::lock_guard lock(mutex_);
  const bool own = kind == MemoryKind::device && !shares_memory();
  const std::size_t limit = own ? limits_.device : limits_.host;
  if (limit != Limits::none) {
    std::size_t held = 0;
    for (const MemoryKind k : {MemoryKind::device, MemoryKind::pinned, MemoryKind::pageable})
      if ((k == MemoryKind::device && !shares_memory()) == own) held += ledger_.held(k);
    if (bytes > limit || held > limit - bytes)
      fail("out of {} memory: {} for '{}' beside {} already held is more than {}, which the run may have",
           own ? "device" : "host", format_bytes(bytes), name, format_bytes(held), format_bytes(limit));
  }
  void* data = allocate_memory(kind, bytes, touch);
  if (!data)
    fail(
        "out of {} memory: {} for '{}' beside {} already held; "
        "use a smaller batch, a shorter max_length or activation checkpointing",
        so::name_of(kind), format_bytes(bytes), name, format_bytes(ledger_.held(kind)));
  ledger_.add(kind, name, bytes);
  return Buffer(*this, kind, std::move(name), data, bytes);
}

}  // namespace so
