#include "device/arena.h"

#include <algorithm>
#include <limits>

#include "base/quantities.h"

namespace so {

Arena::Arena(Device& device, MemoryKind kind, std::string name, std::size_t capacity) : name_(std::move(name)) {
  if (device.backed()) {
    buffer_ = device.allocate(kind, capacity, name_);
    base_ = static_cast<std::byte*>(buffer_.data());
    capacity_ = capacity;
  } else {
    // Addresses of a dry device are numbers only: any aligned, non-null base will do.
    base_ = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
    capacity_ = std::numeric_limits<std::size_t>::max();
  }
}

Tensor Arena::acquire(std::string_view name, DType dtype, std::initializer_list<std::int64_t> shape) {
  Tensor tensor(base_ + used_, dtype, shape);
  const std::size_t bytes = (tensor.bytes() + alignment - 1) / alignment * alignment;
  SO_CHECK(bytes <= capacity_ - used_, "arena '{}' of {} is full: '{}' {} after {}", name_, format_bytes(capacity_),
           name, format_bytes(bytes), format_bytes(used_));
  used_ += bytes;
  high_water_ = std::max(high_water_, used_);
  return tensor;
}

}  // namespace so
