// Conversion between f32 and bf16.
#include <cstdint>

#include "device/cpu/cpu_device.h"
#include "optim/cpu/cpu_engine_ops.h"
#include "optim/engine_ops_checks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/cpu/cast.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "base/row_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so::rows {
namespace HWY_NAMESPACE {

template <class To, class From>
void cast_as(To* out, const From* in, std::int64_t count) {
  for_row(count, [=](auto d, std::int64_t i) HWY_ATTR { store(d, load(d, in + i), out + i); });
}

void cast_elements(Tensor out, Tensor in, std::int64_t begin, std::int64_t end) {
  if (out.dtype() == DType::bf16)
    cast_as(out.as<bf16>() + begin, in.as<float>() + begin, end - begin);
  else
    cast_as(out.as<float>() + begin, in.as<bf16>() + begin, end - begin);
}

}  // namespace HWY_NAMESPACE
}  // namespace so::rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {
namespace rows {
namespace {

HWY_EXPORT(cast_elements);

// Some tens of microseconds of memory traffic, several times what it costs to wake a thread.
constexpr std::int64_t piece_elements = 1 << 15;

void cast(ThreadPool& pool, const Tensor& out, const Tensor& in) {
  pool.parallel_for(in.size(), piece_elements, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(cast_elements)(out, in, begin, end);
  });
}

}  // namespace
}  // namespace rows

void CpuEngineOps::cast(Stream& stream, Tensor out, Tensor in) {
  check_cast(out, in);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("cast", WorkCategory::memory_bound, [=, &pool] { rows::cast(pool, out, in); });
}

}  // namespace so
#endif
