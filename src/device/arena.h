// A stack of named tensors inside one buffer.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "device/device.h"

namespace so {

// Memory is taken at the top and given back in the opposite order, by Scope. On a dry device the arena has no limit and
// records the high-water mark that the real one is then made with. Not thread-safe. Reuse follows stream order: what a
// scope gave back may be written by work enqueued later on the same stream; with several streams, order them first.
class Arena {
 public:
  static constexpr std::size_t alignment = 256;  // covers cache lines, SIMD vectors and GPU transactions

  // `capacity` in bytes; ignored (unlimited) on a dry device.
  Arena(Device& device, MemoryKind kind, std::string name, std::size_t capacity);

  // Throws Bug when the arena is full: its size came from the same code, so that is an error of the plan.
  Tensor acquire(std::string_view name, DType dtype, std::initializer_list<std::int64_t> shape);

  std::size_t high_water() const { return high_water_; }
  std::size_t capacity() const { return capacity_; }

  // Gives back on destruction what was acquired since its construction.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.used_) {}
    ~Scope() { arena_.used_ = mark_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    std::size_t mark_;
  };

 private:
  std::string name_;
  Buffer buffer_;
  std::byte* base_ = nullptr;
  std::size_t capacity_ = 0, used_ = 0, high_water_ = 0;
};

}  // namespace so
