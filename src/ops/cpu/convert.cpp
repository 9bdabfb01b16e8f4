#include "ops/cpu/convert.h"

#include <cstring>

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/convert.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "base/row_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
namespace simd = rows::HWY_NAMESPACE;

void widen(float* to, const bf16* from, std::int64_t count) {
  simd::for_row(count, [&](auto d, std::int64_t i) { simd::store(d, simd::load(d, from + i), to + i); });
}

template <class To, class Bias>
void store_sum(To* to, const float* from, std::int64_t count, const Bias* bias, bool add) {
  simd::for_row(count, [&](auto d, std::int64_t i) {
    auto sum = simd::load(d, from + i);
    if (bias) sum = hn::Add(sum, simd::load(d, bias + i));
    if (add) sum = hn::Add(sum, simd::load(d, to + i));
    simd::store(d, sum, to + i);
  });
}

void store_f32_bias_f32(float* to, const float* from, std::int64_t count, const float* bias, bool add) {
  store_sum(to, from, count, bias, add);
}
void store_f32_bias_bf16(float* to, const float* from, std::int64_t count, const bf16* bias, bool add) {
  store_sum(to, from, count, bias, add);
}
void store_bf16_bias_f32(bf16* to, const float* from, std::int64_t count, const float* bias, bool add) {
  store_sum(to, from, count, bias, add);
}
void store_bf16_bias_bf16(bf16* to, const float* from, std::int64_t count, const bf16* bias, bool add) {
  store_sum(to, from, count, bias, add);
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
    if (!bias && !add)
      std::memcpy(out, from, static_cast<std::size_t>(count) * sizeof(float));
    else if (narrow_bias)
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
