// AdamW over one host-owned bucket, as work for the host's threads: in each of the ways in which the schedule wants it.
// All give the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/tensor.h"
#include "base/thread_pool.h"
#include "offload/adamw_steps.h"
#include "offload/memory/optimizer_state.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/parameter_layout.h"
#include "optim/adamw.h"

namespace so {

// Gradients are fp32 or bf16 [bucket]; weights, of the same length, are written between the bucket's paddings. Until
// the work is done, what it was made from must last: this object, the buckets, and the memory of tensors and spans.
class BucketUpdate {
 public:
  BucketUpdate(const ParameterLayout& layout, OptimizerState& state) : layout_(layout), state_(state) {}

  // State and weights.
  ParallelWork in_place(const Bucket& bucket, const AdamWSteps& steps, Tensor gradient, Tensor weights) const;
  // Weights, and the new state in a place taken for it; the bucket's own stays as it is.
  ParallelWork beside(int place, const Bucket& bucket, const AdamWSteps& steps, Tensor gradient, Tensor weights) const;
  // The weights alone.
  ParallelWork preview(const Bucket& bucket, const AdamWSteps& steps, Tensor gradient, Tensor weights) const;
  // The state alone, in place.
  ParallelWork follow(const Bucket& bucket, const AdamWSteps& steps, Tensor gradient) const;
  // The weights alone, of some rows of `width` elements of a parameter, whose elements these buckets have. Gradients
  // and weights: [rows, width].
  ParallelWork preview_rows(std::span<const Bucket> buckets, const AdamWSteps& steps, Range parameter,
                            std::int64_t width, std::span<const std::int64_t> rows, Tensor gradients,
                            Tensor weights) const;
  // The weights that the master weights are, without any update.
  ParallelWork round_masters(const Bucket& bucket, Tensor weights) const;

 private:
  using Parts = std::vector<ParallelWork>;
  template <class Add>
  Parts for_each_run(const Bucket& bucket, const AdamWSteps& steps, Tensor gradient, Tensor weights,
                     const Add& add) const;
  void add_cleared_padding(Parts& parts, int place, const Bucket& bucket) const;
  // Both are for parameters that the step leaves as they are: the first copies their state to a place for new state.
  void add_copied_state(Parts& parts, int place, const Bucket& bucket, Range range) const;
  ParallelWork copy_weights(const Bucket& bucket, Range range, const WeightSpan& weights) const;
  // On the calling thread: `part` lies in the bucket, and from `at` on in gradients and weights.
  void preview_part(const Bucket& bucket, const AdamWSteps& steps, Range part, const Tensor& gradients,
                    const Tensor& weights, std::int64_t at) const;

  const ParameterLayout& layout_;
  OptimizerState& state_;
};

}  // namespace so
