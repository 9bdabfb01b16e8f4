// AdamW over one host-owned bucket, by the host's threads: in each of the ways in which the schedule wants it. All give
// the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "base/tensor.h"
#include "base/thread_pool.h"
#include "offload/adamw_steps.h"
#include "offload/memory/optimizer_state.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/parameter_layout.h"
#include "optim/adamw.h"

namespace so {

// Gradients are fp32 or bf16 [bucket]; weights, of the same length, are written between the bucket's paddings.
class BucketUpdate {
 public:
  // `meanwhile`: what the calling thread does while the pool's others have begun an update; see
  // ThreadPool::parallel_for(). An update of several parameters calls it several times, one of none never.
  BucketUpdate(ThreadPool& pool, const ParameterLayout& layout, OptimizerState& state, std::function<void()> meanwhile)
      : pool_(pool), layout_(layout), state_(state), meanwhile_(std::move(meanwhile)) {}

  // State and weights.
  void in_place(const Bucket& bucket, const AdamWSteps& steps, Tensor gradient, Tensor weights) const;
  // Weights, and the new state in a place taken for it; the bucket's own stays as it is.
  void beside(int place, const Bucket& bucket, const AdamWSteps& steps, Tensor gradient, Tensor weights) const;
  // The weights alone.
  void preview(const Bucket& bucket, const AdamWSteps& steps, Tensor gradient, Tensor weights) const;
  // The state alone, in place.
  void follow(const Bucket& bucket, const AdamWSteps& steps, Tensor gradient) const;
  // The weights alone, of some rows of `width` elements of a parameter, whose elements these buckets have. Gradients
  // and weights: [rows, width].
  void preview_rows(std::span<const Bucket> buckets, const AdamWSteps& steps, Range parameter, std::int64_t width,
                    std::span<const std::int64_t> rows, Tensor gradients, Tensor weights) const;
  // The weights that the master weights are, without any update.
  void round_masters(const Bucket& bucket, Tensor weights) const;

 private:
  template <class Body>
  void for_each_run(const Bucket& bucket, const AdamWSteps& steps, Tensor gradient, Tensor weights,
                    const Body& body) const;
  void clear_padding(int place, const Bucket& bucket) const;
  // Both are for parameters that the step leaves as they are: the first copies their state to a place for new state.
  void copy_state(int place, const Bucket& bucket, Range range) const;
  // On the calling thread: `part` lies in the bucket; gradients and weights are those of its first element and the
  // rest.
  void preview_part(const Bucket& bucket, const AdamWSteps& steps, Range part, Tensor gradients, Tensor weights) const;
  void copy_weights(const Bucket& bucket, Range range, const WeightSpan& weights) const;

  ThreadPool& pool_;
  const ParameterLayout& layout_;
  OptimizerState& state_;
  const std::function<void()> meanwhile_;
};

}  // namespace so
