// A vector of elements of AdamW: loads, stores and the step of the contract in optim/adamw.h. Included once for each
// instruction set: only in files that use hwy/foreach_target.h.
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "optim/adamw.h"

#if defined(SO_OPTIM_ADAMW_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SO_OPTIM_ADAMW_VECTORS_INL_H_
#undef SO_OPTIM_ADAMW_VECTORS_INL_H_
#else
#define SO_OPTIM_ADAMW_VECTORS_INL_H_
#endif

// The contract needs a multiply-add that rounds once, correctly rounded division and square root, and subnormals; the
// vectors of 32-bit Arm lack the latter two.
#undef SO_ADAMW_VECTORS
#define SO_ADAMW_VECTORS (HWY_NATIVE_FMA && !HWY_ARCH_ARM_V7)

HWY_BEFORE_NAMESPACE();
namespace so::adamw {
namespace HWY_NAMESPACE {

#if SO_ADAMW_VECTORS

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using DU = hn::RebindToUnsigned<D>;
using DHalf = hn::Rebind<std::uint16_t, D>;      // as many 16-bit lanes as D has lanes
using DTwo = hn::Repartition<std::uint16_t, D>;  // twice as many: a whole vector

HWY_INLINE V load(D d, const float* from) { return hn::LoadU(d, from); }
HWY_INLINE V load(D d, const bf16* from) {
  const DU du;
  const auto bits = hn::LoadU(DHalf(), reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}

template <bool kStream, class DX, class VX, class T>
HWY_INLINE void store_lanes(VX v, DX d, T* to) {
#if HWY_ARCH_X86
  if constexpr (kStream) return hn::Stream(v, d, to);
#endif
  hn::StoreU(v, d, to);  // other architectures notice by themselves that whole lines are written
}

// bf16::round of a result of arithmetic, whose NaNs are quiet already; in the lanes' upper halves. Not the processors'
// own conversion instructions: some flush subnormals.
HWY_INLINE hn::Vec<DU> round_to_bf16(V x) {
  const DU du;
  const auto u = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1));
  const auto rounded = hn::Add(u, hn::Add(odd, hn::Set(du, 0x7fff)));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), u, rounded);
}

template <bool kStream>
HWY_INLINE void store(D d, V x, float* to) {
  store_lanes<kStream>(x, d, to);
}
template <bool kStream>
HWY_INLINE void store(D, V x, bf16* to) {
  const auto bits = hn::TruncateTo(DHalf(), hn::ShiftRight<16>(round_to_bf16(x)));
  store_lanes<kStream>(bits, DHalf(), reinterpret_cast<std::uint16_t*>(to));
}
template <bool kStream>
HWY_INLINE void store(D, V, std::nullptr_t) {}

// Two vectors, x before y: of bf16 they make a whole one, so that past the cache whole lines are stored where vectors
// are lines.
template <bool kStream>
HWY_INLINE void store_two(D d, V x, V y, float* to) {
  store_lanes<kStream>(x, d, to);
  store_lanes<kStream>(y, d, to + hn::Lanes(d));
}
template <bool kStream>
HWY_INLINE void store_two(D, V x, V y, bf16* to) {
  const DTwo two;
  const auto bits = hn::ConcatOdd(two, hn::BitCast(two, round_to_bf16(y)), hn::BitCast(two, round_to_bf16(x)));
  store_lanes<kStream>(bits, two, reinterpret_cast<std::uint16_t*>(to));
}
template <bool kStream>
HWY_INLINE void store_two(D, V, V, std::nullptr_t) {}

// New p, m and v of one vector of elements and its gradient; the operations and their order are the contract.
HWY_INLINE void step_lanes(D d, const AdamWStep& s, V gradient, V& p, V& m, V& v) {
  const V g = hn::Mul(hn::Set(d, s.grad_scale), gradient);
  m = hn::MulAdd(hn::Set(d, s.one_minus_beta1), hn::Sub(g, m), m);
  v = hn::MulAdd(hn::Mul(hn::Set(d, s.one_minus_beta2), g), g, hn::Mul(hn::Set(d, s.beta2), v));
  const V denom = hn::MulAdd(hn::Sqrt(v), hn::Set(d, s.inv_sqrt_bias2), hn::Set(d, s.epsilon));
  const V q = hn::Div(m, denom);
  p = hn::Sub(p, hn::MulAdd(hn::Set(d, s.step_size), q, hn::Mul(hn::Set(d, s.decay), p)));
}

// Prefetches the cache lines of these elements.
template <class T>
HWY_INLINE void prefetch_lines(const T* from, std::size_t elements) {
  constexpr std::size_t line = 64;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(from);
  for (std::size_t i = 0; i < elements * sizeof(T); i += line) hwy::Prefetch(bytes + i);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace so::adamw
HWY_AFTER_NAMESPACE();

#endif
