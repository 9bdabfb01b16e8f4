#include "ops/cpu/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/softmax.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::ScalableTag<float>;
using Vec = hn::Vec<Tag>;

std::int64_t lanes() { return static_cast<std::int64_t>(hn::Lanes(Tag())); }

// Highway's Exp gives 0 for NaN.
HWY_INLINE Vec exp_keeping_nan(Vec x) {
  const Tag d;
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

// Calls full(i) for each whole vector of [0, count) and rest(i, n) for the n elements after the last.
template <class Full, class Rest>
void for_vectors(std::int64_t count, const Full& full, const Rest& rest) {
  const std::int64_t step = lanes();
  std::int64_t i = 0;
  for (; i + step <= count; i += step) full(i);
  if (i < count) rest(i, count - i);
}

// The elements after the last whole vector, `fill` in the lanes beyond; through a buffer, so that nothing outside the
// row is touched.
Vec load_rest(const float* from, std::int64_t count, float fill) {
  HWY_ALIGN float buffer[hn::MaxLanes(Tag())];
  std::fill_n(buffer, lanes(), fill);
  std::copy_n(from, count, buffer);
  return hn::Load(Tag(), buffer);
}
void store_rest(Vec value, float* to, std::int64_t count) {
  HWY_ALIGN float buffer[hn::MaxLanes(Tag())];
  hn::Store(value, Tag(), buffer);
  std::copy_n(buffer, count, to);
}

float max_of(const float* x, std::int64_t count) {
  const Tag d;
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  Vec largest = hn::Set(d, lowest);
  for_vectors(
      count, [&](std::int64_t i) { largest = hn::Max(largest, hn::LoadU(d, x + i)); },
      [&](std::int64_t i, std::int64_t n) { largest = hn::Max(largest, load_rest(x + i, n, lowest)); });
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

float exp_in_place(float* x, std::int64_t count, float shift) {
  const Tag d;
  const Vec shifts = hn::Set(d, shift);
  // Alternating sums hide the latency of additions, and shorten the chains that errors grow along.
  Vec even = hn::Zero(d), odd = hn::Zero(d);
  for_vectors(
      count,
      [&](std::int64_t i) {
        const Vec e = exp_keeping_nan(hn::Sub(hn::LoadU(d, x + i), shifts));
        hn::StoreU(e, d, x + i);
        const Vec sum = hn::Add(odd, e);
        odd = even;
        even = sum;
      },
      [&](std::int64_t i, std::int64_t n) {
        const Vec e = exp_keeping_nan(hn::Sub(load_rest(x + i, n, shift - 200.0f), shifts));
        store_rest(e, x + i, n);
        even = hn::Add(even, hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(n)), e));
      });
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

void scale_in_place(float* x, std::int64_t count, float factor) {
  const Tag d;
  const Vec factors = hn::Set(d, factor);
  for_vectors(
      count, [&](std::int64_t i) { hn::StoreU(hn::Mul(hn::LoadU(d, x + i), factors), d, x + i); },
      [&](std::int64_t i, std::int64_t n) {
        for (std::int64_t j = i; j < i + n; ++j) x[j] *= factor;
      });
}

float dot(const float* x, const float* y, std::int64_t count) {
  const Tag d;
  Vec sum = hn::Zero(d);
  for_vectors(
      count, [&](std::int64_t i) { sum = hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), sum); },
      [&](std::int64_t i, std::int64_t n) { sum = hn::MulAdd(load_rest(x + i, n, 0), load_rest(y + i, n, 0), sum); });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Tiles are padded, so their rows are done in whole vectors, the one that ends a row under a mask.
using TileTag = hn::CappedTag<float, tile_padding>;

struct Seen {
  std::int64_t begin, end;  // of the columns; 0, 0 for none
};
Seen seen_by(const ScoreTile& t, std::int64_t row) {
  const std::int64_t past = t.first + row % t.period, end = std::clamp<std::int64_t>(past, 0, t.width);
  const std::int64_t begin = std::max<std::int64_t>(past - t.window, 0);
  return begin < end ? Seen{begin, end} : Seen{0, 0};
}

// For each vector at column i of a row that something of is seen: step(i, mask of the lanes that are seen). The vectors
// that nothing of is seen are cleared in each of `arrays`.
template <class Step, class... Arrays>
void for_seen(const Seen& seen, std::int64_t width, const Step& step, Arrays*... arrays) {
  const TileTag d;
  const auto lanes_d = static_cast<std::int64_t>(hn::Lanes(d));
  const auto all = hn::FirstN(d, hn::Lanes(d));
  const auto first_lanes = [&](std::int64_t n) { return hn::FirstN(d, static_cast<std::size_t>(n)); };
  std::int64_t i = 0;
  for (; i + lanes_d <= seen.begin; i += lanes_d) (hn::StoreU(hn::Zero(d), d, arrays + i), ...);
  if (i < seen.begin) {
    step(i, hn::AndNot(first_lanes(seen.begin - i), first_lanes(std::min(seen.end - i, lanes_d))));
    i += lanes_d;
  }
  for (; i + lanes_d <= seen.end; i += lanes_d) step(i, all);
  if (i < seen.end) {
    step(i, first_lanes(seen.end - i));
    i += lanes_d;
  }
  for (; i < width; i += lanes_d) (hn::StoreU(hn::Zero(d), d, arrays + i), ...);
}

HWY_INLINE hn::Vec<TileTag> exp_tile(hn::Vec<TileTag> x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(TileTag(), x));
}

void step_of_softmax(const ScoreTile& t, float* largest, float* total, float* sums, std::int64_t dim, bool first_tile) {
  const TileTag d;
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  for (std::int64_t r = 0; r < t.rows; ++r) {
    float* row = t.data + r * t.stride;
    const Seen seen = seen_by(t, r);
    auto high = hn::Set(d, lowest);
    for_seen(
        seen, t.width,
        [&](std::int64_t i, auto mask) {
          high = hn::Max(high, hn::IfThenElse(mask, hn::LoadU(d, row + i), hn::Set(d, lowest)));
        },
        row);
    float shift = hn::GetLane(hn::MaxOfLanes(d, high));
    if (first_tile) {
      largest[r] = shift;
      total[r] = 0;
    }
    if (seen.end == 0) continue;
    if (!first_tile) {
      shift = std::max(largest[r], shift);
      const float correction = std::exp(largest[r] - shift);
      largest[r] = shift;
      if (correction != 1.0f) {
        total[r] *= correction;
        scale_in_place(sums + r * dim, dim, correction);
      }
    }
    const auto shifts = hn::Set(d, shift);
    auto sum = hn::Zero(d);
    for_seen(seen, seen.end, [&](std::int64_t i, auto mask) {
      const auto e = hn::IfThenElseZero(mask, exp_tile(hn::Sub(hn::LoadU(d, row + i), shifts)));
      hn::StoreU(e, d, row + i);
      sum = hn::Add(sum, e);
    });
    total[r] += hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

void grad_of_softmax(const ScoreTile& t, float* dp, const float* lse, const float* delta) {
  const TileTag d;
  for (std::int64_t r = 0; r < t.rows; ++r) {
    float *row = t.data + r * t.stride, *drow = dp + r * t.stride;
    const auto lses = hn::Set(d, lse[r]), deltas = hn::Set(d, delta[r]);
    for_seen(
        seen_by(t, r), t.width,
        [&](std::int64_t i, auto mask) {
          const auto p = hn::IfThenElseZero(mask, exp_tile(hn::Sub(hn::LoadU(d, row + i), lses)));
          hn::StoreU(p, d, row + i);
          hn::StoreU(hn::IfThenElseZero(mask, hn::Mul(p, hn::Sub(hn::LoadU(d, drow + i), deltas))), d, drow + i);
        },
        row, drow);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace so
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {

HWY_EXPORT(max_of);
HWY_EXPORT(exp_in_place);
HWY_EXPORT(scale_in_place);
HWY_EXPORT(dot);
HWY_EXPORT(step_of_softmax);
HWY_EXPORT(grad_of_softmax);

float row_max(const float* x, std::int64_t count) { return HWY_DYNAMIC_DISPATCH(max_of)(x, count); }
float exp_row(float* x, std::int64_t count, float shift) { return HWY_DYNAMIC_DISPATCH(exp_in_place)(x, count, shift); }
void scale_row(float* x, std::int64_t count, float factor) { HWY_DYNAMIC_DISPATCH(scale_in_place)(x, count, factor); }
float dot_row(const float* x, const float* y, std::int64_t count) { return HWY_DYNAMIC_DISPATCH(dot)(x, y, count); }
void softmax_tile(const ScoreTile& scores, float* largest, float* total, float* sums, std::int64_t dim,
                  bool first_tile) {
  HWY_DYNAMIC_DISPATCH(step_of_softmax)(scores, largest, total, sums, dim, first_tile);
}
void softmax_grad_tile(const ScoreTile& scores, float* dp, const float* lse, const float* delta) {
  HWY_DYNAMIC_DISPATCH(grad_of_softmax)(scores, dp, lse, delta);
}

}  // namespace so
#endif  // HWY_ONCE
