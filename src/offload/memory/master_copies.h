// The way of master weights that the host owns to the device, where they are rounded to weights: for weights that have
// no memory of their own (ResidencyKind::streamed_from_masters and gathered_from_masters).
//
// A unit travels in a few pieces, however many buckets it has, because each piece needs a kernel. Beside large matrix
// products on other streams a kernel waits milliseconds for a free multiprocessor, and the next piece for the same
// place waits for that kernel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/tensor.h"
#include "device/device.h"
#include "optim/engine_ops.h"

namespace so {

class MasterCopies {
 public:
  // Each unit has at most `elements`. Device memory for two pieces, booked as "masters on their way".
  static constexpr std::size_t slots = 2;
  static constexpr std::int64_t pieces = 4;  // of the largest unit
  static constexpr std::size_t device_bytes(std::int64_t elements) {
    return slots * static_cast<std::size_t>(piece_of(elements)) * sizeof(float);
  }
  MasterCopies(Device& device, std::int64_t elements);
  // Waits for copies under way, and for what casts them.
  ~MasterCopies();
  MasterCopies(const MasterCopies&) = delete;
  MasterCopies& operator=(const MasterCopies&) = delete;

  struct Part {
    Tensor masters;  // fp32 in pinned memory
    Tensor weights;  // as many, fp32 or bf16, on the device
  };
  // Enqueues: the masters of a unit's parts come to the device on a stream of their own, and become the weights on
  // `stream`. The copies wait for neither what is on `stream` nor what uses the weights, so they are under way before
  // these are free. One thread at a time.
  void cast(std::span<const Part> unit, Stream& stream);
  // Waits until no masters are read any more.
  void wait() { stream_->synchronize(); }

 private:
  // Elements of a piece, so that all begin at the alignment of device memory.
  static constexpr std::int64_t piece_of(std::int64_t elements) {
    constexpr std::int64_t alignment = 64;
    return (elements + pieces * alignment - 1) / (pieces * alignment) * alignment;
  }
  struct Slot {
    Buffer memory;
    std::unique_ptr<Event> arrived, used;
  };
  const std::unique_ptr<EngineOps> ops_;
  const std::int64_t piece_;
  std::array<Slot, slots> slots_;
  std::size_t turn_ = 0;
  std::unique_ptr<Stream> stream_;  // last: its work uses the others
};

}  // namespace so
