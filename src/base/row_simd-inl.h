// SIMD over one row of f32 or bf16: loads that widen to f32, stores that round, and the two shapes a row kernel has (a
// map and a sum). Included once for each instruction set: only in files that use hwy/foreach_target.h.
//
// Every helper takes its tag d as a template argument, and a row is done in full vectors, then element by element with
// one-lane vectors, so that a kernel is written once and any length works.
//
// Not for sums that must not depend on the instruction set: sum_row adds in an order that follows the vector length.
#include <cstdint>

#include "base/dtype.h"
#include "hwy/highway.h"

#if defined(SO_BASE_ROW_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SO_BASE_ROW_SIMD_INL_H_
#undef SO_BASE_ROW_SIMD_INL_H_
#else
#define SO_BASE_ROW_SIMD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace so::rows {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using OneFloat = hn::CappedTag<float, 1>;

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const bf16* p) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<std::uint16_t, D> du16;
  const auto bits = hn::LoadU(du16, reinterpret_cast<const std::uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> v, float* p) {
  hn::StoreU(v, d, p);
}
// bf16::round in lanes: to nearest, ties to even, NaN quieted. (Processors' own conversions differ in subnormals.)
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, D>> round(D, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<std::uint16_t, D> du16;
  const auto u = hn::BitCast(du, v);
  const auto upper = hn::ShiftRight<16>(u);
  const auto odd = hn::And(upper, hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(u, hn::Add(odd, hn::Set(du, 0x7fff))));
  const auto nan = hn::RebindMask(du, hn::IsNaN(v));
  return hn::TruncateTo(du16, hn::IfThenElse(nan, hn::Or(upper, hn::Set(du, 0x40)), rounded));
}
template <class D>
HWY_INLINE void store(D d, hn::Vec<D> v, bf16* p) {
  const hn::Rebind<std::uint16_t, D> du16;
  hn::StoreU(round(d, v), du16, reinterpret_cast<std::uint16_t*>(p));
}

// step(d, i) for every i of the row: it handles the elements [i, i + Lanes(d)).
template <class Step>
HWY_INLINE void for_row(std::int64_t count, const Step& step) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) step(d, i);
  for (; i < count; ++i) step(OneFloat(), i);
}

// The sum over the row of term(d, i), a vector for the elements [i, i + Lanes(d)). Each term is taken once, in order,
// so it may also store. Four sums run side by side: one alone would wait for its own additions.
template <class Term>
HWY_INLINE float sum_row(std::int64_t count, const Term& term) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    s0 = hn::Add(s0, term(d, i));
    s1 = hn::Add(s1, term(d, i + lanes));
    s2 = hn::Add(s2, term(d, i + 2 * lanes));
    s3 = hn::Add(s3, term(d, i + 3 * lanes));
  }
  for (; i + lanes <= count; i += lanes) s0 = hn::Add(s0, term(d, i));
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; i < count; ++i) sum += hn::GetLane(term(OneFloat(), i));
  return sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace so::rows
HWY_AFTER_NAMESPACE();

#endif  // SO_BASE_ROW_SIMD_INL_H_
