// AdamW where the optimizer state lies in device memory: the contract of optim/adamw.h, to the bit, on a stream.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/tensor.h"
#include "device/device.h"
#include "optim/adamw.h"

namespace so {

// Elements [begin, end) of the arrays of an update, all with weight decay or all without.
struct AdamWRun {
  std::int64_t begin = 0, end = 0;
  bool decay = true;
  std::int64_t first_block = 0;  // of the arrays' blocks, where moments are in 8 bits: a run begins with a block
};

class DeviceAdamW {
 public:
  virtual ~DeviceAdamW() = default;
  // Enqueues the update of the elements of `runs` (disjoint, ascending) in place; what lies between them is neither
  // read nor written. gradient f32 or bf16 [n]; state: three arrays [n] and scales of 8-bit moments; weights f32 or
  // bf16 [n], written unless they have no memory. All arrays are device memory, begin at multiples of 16 bytes and
  // overlap nowhere. `runs` may go when the call returns.
  virtual void update(Stream& stream, const AdamWStep& step, std::span<const AdamWRun> runs, Tensor gradient,
                      AdamWState state, Tensor weights) = 0;
};

// The implementation for the device's kind; for a dry device, one that does nothing.
std::unique_ptr<DeviceAdamW> make_device_adamw(Device& device);

}  // namespace so
