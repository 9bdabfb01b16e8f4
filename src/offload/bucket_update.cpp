#include "offload/bucket_update.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <variant>

#include "base/bf16_arrays.h"
#include "base/error.h"

namespace so {
namespace {

constexpr std::int64_t copy_grain = 1 << 16;

GradientSpan gradient_elements(const Tensor& gradient, std::int64_t first, std::int64_t count) {
  const auto at = static_cast<std::size_t>(first), size = static_cast<std::size_t>(count);
  if (gradient.dtype() == DType::bf16) return gradient.span<const bf16>().subspan(at, size);
  return gradient.span<const float>().subspan(at, size);
}

WeightSpan weight_elements(const Tensor& weights, std::int64_t first, std::int64_t count) {
  const auto at = static_cast<std::size_t>(first), size = static_cast<std::size_t>(count);
  if (!weights) return {};
  if (weights.dtype() == DType::bf16) return weights.span<bf16>().subspan(at, size);
  return weights.span<float>().subspan(at, size);
}

// Elements [begin, end) of the weights become their masters, rounded.
void write_masters(const float* masters, const WeightSpan& weights, std::int64_t begin, std::int64_t end) {
  const auto first = static_cast<std::size_t>(begin), count = static_cast<std::size_t>(end - begin);
  if (const auto* narrow = std::get_if<std::span<bf16>>(&weights))
    round_to_bf16(masters + begin, narrow->data() + first, count);
  else if (const auto* wide = std::get_if<std::span<float>>(&weights))
    std::memcpy(wide->data() + first, masters + begin, count * sizeof(float));
}

}  // namespace

// Returns what add(parts, run, gradient, weights) adds for each run of parameters that one update covers, or none.
template <class Add>
BucketUpdate::Parts BucketUpdate::for_each_run(const Bucket& bucket, const AdamWSteps& steps, Tensor gradient,
                                               Tensor weights, const Add& add) const {
  Parts parts;
  for (const AdamWSteps::Run& run : steps.runs(layout_, bucket.own())) {
    const std::int64_t first = run.range.begin - bucket.own().begin, count = run.range.size();
    add(parts, run, gradient_elements(gradient, first, count), weight_elements(weights, first, count));
  }
  return parts;
}

ParallelWork BucketUpdate::in_place(const Bucket& bucket, const AdamWSteps& steps, Tensor gradient,
                                    Tensor weights) const {
  return all_of(for_each_run(bucket, steps, gradient, weights,
                             [&](Parts& parts, const AdamWSteps::Run& run, const GradientSpan& g, const WeightSpan& w) {
                               const AdamWState state = state_.at(bucket, run.range.begin);
                               parts.push_back(run.step == nullptr
                                                   ? copy_weights(bucket, run.range, w)
                                                   : adamw_update_work(*run.step, run.decay, g, state, state, w));
                             }));
}

ParallelWork BucketUpdate::beside(int place, const Bucket& bucket, const AdamWSteps& steps, Tensor gradient,
                                  Tensor weights) const {
  Parts all = for_each_run(
      bucket, steps, gradient, weights,
      [&](Parts& parts, const AdamWSteps::Run& run, const GradientSpan& g, const WeightSpan& w) {
        if (run.step != nullptr)
          return parts.push_back(adamw_update_work(*run.step, run.decay, g, state_.at(bucket, run.range.begin),
                                                   state_.beside(place, bucket, run.range.begin), w));
        add_copied_state(parts, place, bucket, run.range);
        parts.push_back(copy_weights(bucket, run.range, w));
      });
  add_cleared_padding(all, place, bucket);
  return all_of(std::move(all));
}

ParallelWork BucketUpdate::preview(const Bucket& bucket, const AdamWSteps& steps, Tensor gradient,
                                   Tensor weights) const {
  return all_of(for_each_run(bucket, steps, gradient, weights,
                             [&](Parts& parts, const AdamWSteps::Run& run, const GradientSpan& g, const WeightSpan& w) {
                               parts.push_back(run.step == nullptr
                                                   ? copy_weights(bucket, run.range, w)
                                                   : adamw_preview_work(*run.step, run.decay, g,
                                                                        state_.at(bucket, run.range.begin), w));
                             }));
}

ParallelWork BucketUpdate::preview_rows(std::span<const Bucket> buckets, const AdamWSteps& steps, Range parameter,
                                        std::int64_t width, std::span<const std::int64_t> rows, Tensor gradients,
                                        Tensor weights) const {
  return {static_cast<std::int64_t>(rows.size()), 8, [=, this](std::int64_t from, std::int64_t to) {
            for (std::int64_t i = from; i < to; ++i) {
              const std::int64_t begin = parameter.begin + rows[static_cast<std::size_t>(i)] * width;
              const Range row{begin, begin + width};
              SO_CHECK(parameter.begin <= row.begin && row.end <= parameter.end, "a row at {} of a parameter at {}",
                       begin, parameter.begin);
              auto bucket =
                  std::upper_bound(buckets.begin(), buckets.end(), begin,
                                   [](std::int64_t element, const Bucket& b) { return element < b.range().end; });
              for (; bucket != buckets.end() && bucket->range().begin < row.end; ++bucket) {
                const Range part = common(bucket->range(), row);
                const std::int64_t at = i * width + part.begin - begin;
                preview_part(*bucket, steps, part, gradients, weights, at);
              }
            }
          }};
}

void BucketUpdate::preview_part(const Bucket& bucket, const AdamWSteps& steps, Range part, const Tensor& gradients,
                                const Tensor& weights, std::int64_t at) const {
  for (const AdamWSteps::Run& run : steps.runs(layout_, part)) {
    const std::int64_t first = at + run.range.begin - part.begin, count = run.range.size();
    const WeightSpan w = weight_elements(weights, first, count);
    if (run.step != nullptr)
      adamw_preview(*run.step, run.decay, gradient_elements(gradients, first, count),
                    state_.at(bucket, run.range.begin), w);
    else
      write_masters(state_.master(bucket, run.range.begin), w, 0, count);
  }
}

void BucketUpdate::add_copied_state(Parts& parts, int place, const Bucket& bucket, Range range) const {
  const auto add = [&](void* to, const void* from, std::int64_t count, std::size_t size) {
    parts.push_back({count, copy_grain, [=](std::int64_t begin, std::int64_t end) {
                       const std::size_t offset = static_cast<std::size_t>(begin) * size;
                       std::memcpy(static_cast<std::byte*>(to) + offset, static_cast<const std::byte*>(from) + offset,
                                   static_cast<std::size_t>(end - begin) * size);
                     }});
  };
  const AdamWState from = state_.at(bucket, range.begin), to = state_.beside(place, bucket, range.begin);
  add(to.master, from.master, range.size(), sizeof(float));
  for (const auto& [new_moments, old_moments] : {std::pair{to.m, from.m}, {to.v, from.v}}) {
    add(new_moments.data(), old_moments.data(), range.size(), old_moments.element_size());
    if (old_moments.scales() != nullptr)
      add(new_moments.scales(), old_moments.scales(), layout_.blocks(range), sizeof(float));
  }
}

ParallelWork BucketUpdate::copy_weights(const Bucket& bucket, Range range, const WeightSpan& weights) const {
  return {range.size(), copy_grain,
          [masters = state_.master(bucket, range.begin), weights](std::int64_t begin, std::int64_t end) {
            write_masters(masters, weights, begin, end);
          }};
}

ParallelWork BucketUpdate::follow(const Bucket& bucket, const AdamWSteps& steps, Tensor gradient) const {
  return in_place(bucket, steps, gradient, Tensor());
}

// Where this bucket has padding between parameters, the place's last one may have had values.
void BucketUpdate::add_cleared_padding(Parts& parts, int place, const Bucket& bucket) const {
  std::int64_t at = bucket.own().begin;
  const auto clear_to = [&](std::int64_t end) {
    if (const Range padding{at, end}; padding.size() > 0)
      parts.push_back({1, 1, [this, place, &bucket, padding](std::int64_t, std::int64_t) {
                         state_.clear(place, bucket, padding);
                       }});
  };
  for (const ParameterLayout::Run& run : layout_.runs(bucket.own())) {
    clear_to(run.range.begin);
    at = run.range.end;
  }
  clear_to(bucket.own().end);
}

ParallelWork BucketUpdate::round_masters(const Bucket& bucket, Tensor weights) const {
  return copy_weights(bucket, bucket.own(), weight_elements(weights, 0, bucket.own().size()));
}

}  // namespace so
