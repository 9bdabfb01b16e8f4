// fp32 state in device memory as the host reads and writes it: in pieces, through two pinned buffers, so that copying
// one goes on beside the caller's work on the other.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "device/device.h"

namespace so {

class StateTransfer {
 public:
  // Pieces of at most `elements`.
  StateTransfer(Device& device, std::int64_t elements);
  ~StateTransfer();

  // Calls body(offset, values) for pieces of the `count` elements at `from`, in order. The copies wait for `current`.
  // The values hold during the call. An exception of the body ends the reading.
  void read(const float* from, std::int64_t count, Event& current,
            const std::function<void(std::int64_t offset, std::span<const float> values)>& body);
  // Calls fill(offset, values) for pieces, whose contents then replace the elements at `to`. They are there on return.
  void write(float* to, std::int64_t count, Event& current,
             const std::function<void(std::int64_t offset, std::span<float> values)>& fill);

 private:
  struct Slot {
    Buffer memory;
    std::unique_ptr<Event> copied;
  };
  const std::int64_t elements_;
  std::unique_ptr<Stream> stream_;
  std::array<Slot, 2> slots_;
};

}  // namespace so
