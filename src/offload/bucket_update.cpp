#include "offload/bucket_update.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <variant>

#include "base/bf16_arrays.h"

namespace so {
namespace {

constexpr std::int64_t copy_grain = 1 << 16;

}  // namespace

// body(run, gradient, weights) for each run of parameters that one update covers, or none.
template <class Body>
void BucketUpdate::for_each_run(const Bucket& bucket, const AdamWSteps& steps, Tensor gradient, Tensor weights,
                                const Body& body) const {
  for (const AdamWSteps::Run& run : steps.runs(layout_, bucket.own())) {
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
    body(run, g, w);
  }
}

void BucketUpdate::in_place(const Bucket& bucket, const AdamWSteps& steps, Tensor gradient, Tensor weights) const {
  for_each_run(bucket, steps, gradient, weights,
               [&](const AdamWSteps::Run& run, const GradientSpan& g, const WeightSpan& w) {
                 if (run.step == nullptr) return copy_weights(bucket, run.range, w);
                 const AdamWState state = state_.at(bucket, run.range.begin);
                 adamw_update_parallel(pool_, *run.step, run.decay, g, state, state, w);
               });
}

void BucketUpdate::beside(int place, const Bucket& bucket, const AdamWSteps& steps, Tensor gradient,
                          Tensor weights) const {
  clear_padding(place, bucket);
  for_each_run(bucket, steps, gradient, weights,
               [&](const AdamWSteps::Run& run, const GradientSpan& g, const WeightSpan& w) {
                 if (run.step == nullptr) {
                   copy_state(place, bucket, run.range);
                   return copy_weights(bucket, run.range, w);
                 }
                 adamw_update_parallel(pool_, *run.step, run.decay, g, state_.at(bucket, run.range.begin),
                                       state_.beside(place, bucket, run.range.begin), w);
               });
}

void BucketUpdate::preview(const Bucket& bucket, const AdamWSteps& steps, Tensor gradient, Tensor weights) const {
  for_each_run(bucket, steps, gradient, weights,
               [&](const AdamWSteps::Run& run, const GradientSpan& g, const WeightSpan& w) {
                 if (run.step == nullptr) return copy_weights(bucket, run.range, w);
                 adamw_preview_parallel(pool_, *run.step, run.decay, g, state_.at(bucket, run.range.begin), w);
               });
}

void BucketUpdate::copy_state(int place, const Bucket& bucket, Range range) const {
  const auto offset = static_cast<std::size_t>(range.begin - bucket.own().begin);
  for (const StateArray array : state_arrays) {
    const Tensor from = state_.part(array, bucket, range), to = state_.part_beside(array, place, bucket);
    const std::size_t size = size_of(from.dtype());
    pool_.parallel_for(range.size(), copy_grain, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(static_cast<std::byte*>(to.data()) + (offset + static_cast<std::size_t>(begin)) * size,
                  static_cast<const std::byte*>(from.data()) + static_cast<std::size_t>(begin) * size,
                  static_cast<std::size_t>(end - begin) * size);
    });
  }
}

void BucketUpdate::copy_weights(const Bucket& bucket, Range range, const WeightSpan& weights) const {
  const float* const master = state_.master(bucket, range.begin);
  pool_.parallel_for(range.size(), copy_grain, [&](std::int64_t begin, std::int64_t end) {
    const auto first = static_cast<std::size_t>(begin), count = static_cast<std::size_t>(end - begin);
    if (const auto* narrow = std::get_if<std::span<bf16>>(&weights))
      round_to_bf16(master + begin, narrow->data() + first, count);
    else if (const auto* wide = std::get_if<std::span<float>>(&weights))
      std::memcpy(wide->data() + first, master + begin, count * sizeof(float));
  });
}

void BucketUpdate::follow(const Bucket& bucket, const AdamWSteps& steps, Tensor gradient) const {
  in_place(bucket, steps, gradient, Tensor());
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
  pool_.parallel_for(bucket.own().size(), copy_grain, [&](std::int64_t begin, std::int64_t end) {
    if (weights.dtype() == DType::bf16)
      round_to_bf16(master + begin, weights.as<bf16>() + begin, static_cast<std::size_t>(end - begin));
    else
      std::memcpy(weights.as<float>() + begin, master + begin, static_cast<std::size_t>(end - begin) * sizeof(float));
  });
}

}  // namespace so
