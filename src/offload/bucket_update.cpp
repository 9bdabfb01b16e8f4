#include "offload/bucket_update.h"

#include <cstring>

#include "base/bf16_arrays.h"

namespace so {

// body(run, step, gradient, weights) for each run of parameters that one update covers, with the step of its learning
// rate.
template <class Body>
void BucketUpdate::for_each_run(const Bucket& bucket, const AdamWStep& step, Tensor gradient, Tensor weights,
                                const Body& body) const {
  for (const ParameterLayout::Run& run : layout_.runs(bucket.own())) {
    const auto first = static_cast<std::size_t>(run.range.begin - bucket.own().begin),
               count = static_cast<std::size_t>(run.range.size());
    GradientSpan g;
    if (gradient.dtype() == DType::bf16)
      g = gradient.span<const bf16>().subspan(first, count);
    else
      g = gradient.span<const float>().subspan(first, count);
    WeightSpan w;
    if (weights && weights.dtype() == DType::bf16)
      w = weights.span<bf16>().subspan(first, count);
    else if (weights)
      w = weights.span<float>().subspan(first, count);
    body(run, with_lr_multiplier(step, run.lr_multiplier), g, w);
  }
}

void BucketUpdate::in_place(const Bucket& bucket, const AdamWStep& step, Tensor gradient, Tensor weights) const {
  for_each_run(bucket, step, gradient, weights,
               [&](const ParameterLayout::Run& run, const AdamWStep& own, const GradientSpan& g, const WeightSpan& w) {
                 const AdamWState state = state_.at(bucket, run.range.begin);
                 adamw_update_parallel(pool_, own, run.decay, g, state, state, w);
               });
}

void BucketUpdate::beside(int place, const Bucket& bucket, const AdamWStep& step, Tensor gradient,
                          Tensor weights) const {
  clear_padding(place, bucket);
  for_each_run(bucket, step, gradient, weights,
               [&](const ParameterLayout::Run& run, const AdamWStep& own, const GradientSpan& g, const WeightSpan& w) {
                 adamw_update_parallel(pool_, own, run.decay, g, state_.at(bucket, run.range.begin),
                                       state_.beside(place, bucket, run.range.begin), w);
               });
}

void BucketUpdate::preview(const Bucket& bucket, const AdamWStep& step, Tensor gradient, Tensor weights) const {
  for_each_run(bucket, step, gradient, weights,
               [&](const ParameterLayout::Run& run, const AdamWStep& own, const GradientSpan& g, const WeightSpan& w) {
                 adamw_preview_parallel(pool_, own, run.decay, g, state_.at(bucket, run.range.begin), w);
               });
}

void BucketUpdate::follow(const Bucket& bucket, const AdamWStep& step, Tensor gradient) const {
  in_place(bucket, step, gradient, Tensor());
}

// Where this bucket has padding between parameters, the place's last one may have had values.
void BucketUpdate::clear_padding(int place, const Bucket& bucket) const {
  std::int64_t at = bucket.own().begin;
  const auto clear_to = [&](std::int64_t end) { state_.clear(place, bucket, {at, end}); };
  for (const ParameterLayout::Run& run : layout_.runs(bucket.own())) {
    clear_to(run.range.begin);
    at = run.range.end;
  }
  clear_to(bucket.own().end);
}

void BucketUpdate::round_masters(const Bucket& bucket, Tensor weights) const {
  const float* master = state_.master(bucket, bucket.own().begin);
  pool_.parallel_for(bucket.own().size(), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
    if (weights.dtype() == DType::bf16)
      round_to_bf16(master + begin, weights.as<bf16>() + begin, static_cast<std::size_t>(end - begin));
    else
      std::memcpy(weights.as<float>() + begin, master + begin, static_cast<std::size_t>(end - begin) * sizeof(float));
  });
}

}  // namespace so
