// The few operations on device memory that an optimizer's engine needs beside AdamW: they link without the libraries of
// a model's operations (ops/ops.h), so the engine does too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/accumulate.h"
#include "base/tensor.h"
#include "device/device.h"

namespace so {

// Sum of squares and count of non-finite elements of a gradient, in device memory.
struct GradStats {
  double sum_of_squares = 0;  // over the finite and non-finite alike: meaningless unless non_finite == 0
  std::uint64_t non_finite = 0;
};

// An operation is enqueued on the stream and returns; its tensors must live until it has run. Arguments are checked
// when it is enqueued (Bug). It keeps no memory of its own, so one instance serves any number of streams and threads.
class EngineOps {
 public:
  virtual ~EngineOps() = default;

  // Bytes of scratch that grad_stats() needs for a gradient of so many elements.
  static std::size_t stats_scratch(std::int64_t elements);
  // *out = stats of grad (f32 or bf16), the sum in a fixed order, the same on every device. `out` is device memory;
  // scratch: u8, at least stats_scratch() of it, aligned to GradStats.
  virtual void grad_stats(Stream&, GradStats* out, Tensor grad, Tensor scratch) = 0;
  // out = in converted, f32 <-> bf16 (round to nearest even), same number of elements.
  virtual void cast(Stream&, Tensor out, Tensor in) = 0;
  // out += in, each f32 or bf16, same number of elements: added in fp32, rounded to out's format once.
  virtual void add(Stream&, Tensor out, Tensor in) = 0;
  // The sum of the values that ranks have for the same elements, added in fp32 in rank order: out (f32) = that sum, or
  // out + that sum. `own` are rank `rank`'s, `others` those of the other ranks in their order, a row each ([0, n] if
  // there are none); both f32, or both bf16. `out` may be `own`. The first rank's values are taken as they are, so one
  // rank's sum is its own values, -0.0 included.
  virtual void sum_of_ranks(Stream&, Tensor out, Accumulate mode, Tensor own, Tensor others, int rank) = 0;
};

// The implementation for the device's kind; for a dry device, one that does nothing.
std::unique_ptr<EngineOps> make_engine_ops(Device& device);

}  // namespace so
