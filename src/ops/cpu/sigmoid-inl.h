// The sigmoid in SIMD, for activations. Included once for each instruction set, as row_simd-inl.h is.
#if defined(SO_OPS_CPU_SIGMOID_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SO_OPS_CPU_SIGMOID_INL_H_
#undef SO_OPS_CPU_SIGMOID_INL_H_
#else
#define SO_OPS_CPU_SIGMOID_INL_H_
#endif

#include "hwy/highway.h"
#include "base/row_simd-inl.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so::rows {
namespace HWY_NAMESPACE {

// sigmoid(x) and 1 - sigmoid(x), both to a few units in the last place, through e = exp(-|x|) <= 1, which cannot
// overflow: {1/(1+e), e/(1+e)}, exchanged for negative x. A NaN may come out as a number here (Exp drops it), but all
// users multiply by x.
template <class D>
HWY_INLINE void sigmoid(D d, hn::Vec<D> x, hn::Vec<D>& value, hn::Vec<D>& complement) {
  const auto one = hn::Set(d, 1.0f);
  const auto e = hn::Exp(d, hn::Neg(hn::Abs(x)));
  const auto large = hn::Div(one, hn::Add(one, e));
  const auto small = hn::Mul(e, large);
  const auto negative = hn::Lt(x, hn::Zero(d));
  value = hn::IfThenElse(negative, small, large);
  complement = hn::IfThenElse(negative, large, small);
}

}  // namespace HWY_NAMESPACE
}  // namespace so::rows
HWY_AFTER_NAMESPACE();

#endif  // SO_OPS_CPU_SIGMOID_INL_H_
