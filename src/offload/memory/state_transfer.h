// Optimizer state as its users read and write it: in fp32 and in pieces, whatever it is kept in, and wherever.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "device/device.h"
#include "offload/memory/state_part.h"

namespace so {

// body(offset, values) for pieces of an array, in order; the values hold during the call. An exception ends it.
using ReadPiece = std::function<void(std::int64_t offset, std::span<const float> values)>;
// fill(offset, values) for pieces of an array, whose contents are then replaced.
using WritePiece = std::function<void(std::int64_t offset, std::span<float> values)>;

// Reads a part in host memory. fp32 is given as it lies, in one piece.
void read_host_state(const StatePart& from, const ReadPiece& body);
// Writes elements `written` of a part, which holds whole blocks; offsets are from the first of `written` on. Where a
// block has other elements too, they are rounded again with a scale of all.
void write_host_state(const StatePart& to, Range written, const WritePiece& fill);

// Reads and writes arrays in device memory through two pinned buffers, so that one piece is copied while the caller
// works on the other. For any thread: one that comes while another reads or writes waits until that has its array.
class StateTransfer {
 public:
  // Pieces of at most `elements`.
  StateTransfer(Device& device, std::int64_t elements);
  ~StateTransfer();

  // The copies wait for `current`. What was written is there on return.
  void read(const StatePart& from, Event& current, const ReadPiece& body);
  void write(const StatePart& to, Range written, Event& current, const WritePiece& fill);

 private:
  struct Slot {
    Buffer memory;
    std::unique_ptr<Event> copied;
  };
  std::vector<Range> pieces_of(const StatePart& part) const;
  // The same elements in a slot.
  StatePart staged(const StatePart& piece, const Slot& slot) const;
  void copy(const StatePart& to, const StatePart& from);  // enqueues
  Slot& slot(std::size_t piece) { return slots_[piece % slots_.size()]; }

  const std::int64_t elements_;
  std::mutex mutex_;
  std::unique_ptr<Stream> stream_;
  std::array<Slot, 2> slots_;
};

}  // namespace so
