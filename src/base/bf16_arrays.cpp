#include "base/bf16_arrays.h"

#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/bf16_arrays.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "base/row_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so::rows {
namespace HWY_NAMESPACE {

template <class From, class To>
void convert_array(const From* from, To* to, std::size_t count) {
  for_row(static_cast<std::int64_t>(count),
          [=](auto d, std::int64_t i) HWY_ATTR { store(d, load(d, from + i), to + i); });
}

void widen_array(const bf16* from, float* to, std::size_t count) { convert_array(from, to, count); }
void round_array(const float* from, bf16* to, std::size_t count) { convert_array(from, to, count); }

}  // namespace HWY_NAMESPACE
}  // namespace so::rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {
namespace rows {
namespace {

HWY_EXPORT(widen_array);
HWY_EXPORT(round_array);

}  // namespace
}  // namespace rows

void widen_bf16(const bf16* from, float* to, std::size_t count) {
  using namespace rows;
  HWY_DYNAMIC_DISPATCH(widen_array)(from, to, count);
}

void round_to_bf16(const float* from, bf16* to, std::size_t count) {
  using namespace rows;
  HWY_DYNAMIC_DISPATCH(round_array)(from, to, count);
}

}  // namespace so
#endif
