// Conversion between f32 and bf16.
#include <cstdint>

#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/cast.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "ops/cpu/row_simd-inl.h"

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

void cast(ThreadPool& pool, const Tensor& out, const Tensor& in) {
  pool.parallel_for(in.size(), kElementsPerPiece, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(cast_elements)(out, in, begin, end);
  });
}

}  // namespace
}  // namespace rows

void CpuOps::cast(Stream& stream, Tensor out, Tensor in) {
  const char* op = "cast";
  expect_compute_dtype(op, "in", in.dtype());
  expect_compute_dtype(op, "out", out.dtype());
  SO_CHECK(in.dtype() != out.dtype(), "{}: both are {}: that is a copy", op, name_of(in.dtype()));
  SO_CHECK(in.size() == out.size(), "{}: from {} to {}", op, shape_string(in.shape()), shape_string(out.shape()));
  SO_CHECK((in && out) || in.size() == 0, "{}: a tensor is empty", op);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("cast", WorkCategory::memory_bound, [=, &pool] { rows::cast(pool, out, in); });
}

}  // namespace so
#endif
