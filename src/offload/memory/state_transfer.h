// Optimizer state as its users read and write it: in fp32 and in pieces, whatever it is kept in, and wherever.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "base/tensor.h"
#include "device/device.h"

namespace so {

// body(offset, values) for pieces of an array, in order; the values hold during the call. An exception ends it.
using ReadPiece = std::function<void(std::int64_t offset, std::span<const float> values)>;
// fill(offset, values) for pieces of an array, whose contents are then replaced.
using WritePiece = std::function<void(std::int64_t offset, std::span<float> values)>;

// Reads an array [n], fp32 or bf16, in host memory. fp32 is given as it lies, in one piece.
void read_host_state(Tensor from, const ReadPiece& body);
void write_host_state(Tensor to, const WritePiece& fill);

// Reads and writes arrays in device memory through two pinned buffers, so that one piece is copied while the caller
// works on the other. For any thread: one that comes while another reads or writes waits until that has its array.
class StateTransfer {
 public:
  // Pieces of at most `elements`.
  StateTransfer(Device& device, std::int64_t elements);
  ~StateTransfer();

  // The copies wait for `current`. What was written is there on return.
  void read(Tensor from, Event& current, const ReadPiece& body);
  void write(Tensor to, Event& current, const WritePiece& fill);

 private:
  struct Slot {
    Buffer memory;
    std::unique_ptr<Event> copied;
  };
  // Elements [piece * elements_, ...) of an array, in the array's own memory and as they lie in a slot.
  Tensor piece_of(const Tensor& array, std::int64_t piece) const;
  Tensor staged(const Tensor& array, std::int64_t piece) const;
  Slot& slot(std::int64_t piece) { return slots_[static_cast<std::size_t>(piece % 2)]; }

  const std::int64_t elements_;
  std::mutex mutex_;
  std::unique_ptr<Stream> stream_;
  std::array<Slot, 2> slots_;
};

}  // namespace so
