#include "ops/cpu/convert.h"

// The order matters, and the headers are included again for each instruction set.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/convert.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <cstring>

#include "base/error.h"

HWY_BEFORE_NAMESPACE();
namespace so {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;
using F32x = hn::Vec<F32>;

F32x load(const float* from) { return hn::LoadU(F32(), from); }
F32x load(const bf16* from) {
  const auto bits = hn::LoadU(U16(), reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), bits)));
}
void store(F32x value, float* to) { hn::StoreU(value, F32(), to); }
void store(F32x value, bf16* to) {  // bf16::round, a lane at a time
  const U32 d;
  const auto u = hn::BitCast(d, value);
  const auto half = hn::Add(hn::Set(d, 0x7fff), hn::And(hn::ShiftRight<16>(u), hn::Set(d, 1)));
  const auto rounded = hn::ShiftRight<16>(hn::Add(u, half));
  const auto quiet = hn::Or(hn::ShiftRight<16>(u), hn::Set(d, 0x40));
  const auto bits = hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(value)), quiet, rounded);
  hn::StoreU(hn::DemoteTo(U16(), hn::BitCast(I32(), bits)), U16(), reinterpret_cast<std::uint16_t*>(to));
}

void widen(float* to, const bf16* from, std::int64_t count) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(F32()));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(load(from + i), to + i);
  for (; i < count; ++i) to[i] = from[i];
}

template <class To, class Bias>
void store_as(To* to, const float* from, std::int64_t count, const Bias* bias, bool add) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(F32()));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    auto sum = load(from + i);
    if (bias) sum = hn::Add(sum, load(bias + i));
    if (add) sum = hn::Add(sum, load(to + i));
    store(sum, to + i);
  }
  for (; i < count; ++i) {
    float sum = from[i];
    if (bias) sum += bias[i];
    if (add) sum += to[i];
    to[i] = To(sum);
  }
}

void store_f32_bias_f32(float* to, const float* from, std::int64_t count, const float* bias, bool add) {
  store_as(to, from, count, bias, add);
}
void store_f32_bias_bf16(float* to, const float* from, std::int64_t count, const bf16* bias, bool add) {
  store_as(to, from, count, bias, add);
}
void store_bf16_bias_f32(bf16* to, const float* from, std::int64_t count, const float* bias, bool add) {
  store_as(to, from, count, bias, add);
}
void store_bf16_bias_bf16(bf16* to, const float* from, std::int64_t count, const bf16* bias, bool add) {
  store_as(to, from, count, bias, add);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace so
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {

HWY_EXPORT(widen);
HWY_EXPORT(store_f32_bias_f32);
HWY_EXPORT(store_f32_bias_bf16);
HWY_EXPORT(store_bf16_bias_f32);
HWY_EXPORT(store_bf16_bias_bf16);

void load_row(float* to, const void* from, DType type, std::int64_t count) {
  if (type == DType::f32) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  } else {
    SO_CHECK(type == DType::bf16, "a row of {}", name_of(type));
    HWY_DYNAMIC_DISPATCH(widen)(to, static_cast<const bf16*>(from), count);
  }
}

void store_row(void* to, DType type, const float* from, std::int64_t count, const void* bias, DType bias_type,
               bool add) {
  const bool narrow_bias = bias_type == DType::bf16;
  if (type == DType::f32) {
    auto* out = static_cast<float*>(to);
    if (narrow_bias)
      HWY_DYNAMIC_DISPATCH(store_f32_bias_bf16)(out, from, count, static_cast<const bf16*>(bias), add);
    else
      HWY_DYNAMIC_DISPATCH(store_f32_bias_f32)(out, from, count, static_cast<const float*>(bias), add);
  } else {
    SO_CHECK(type == DType::bf16, "a row of {}", name_of(type));
    auto* out = static_cast<bf16*>(to);
    if (narrow_bias)
      HWY_DYNAMIC_DISPATCH(store_bf16_bias_bf16)(out, from, count, static_cast<const bf16*>(bias), add);
    else
      HWY_DYNAMIC_DISPATCH(store_bf16_bias_f32)(out, from, count, static_cast<const float*>(bias), add);
  }
}

}  // namespace so
#endif  // HWY_ONCE
