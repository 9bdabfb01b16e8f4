// The sum of the residual stream and what a block adds to it, where no norm makes it; scaled copies; and gradients
// that were added up in fp32.
#include <cstdint>
#include <type_traits>

#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/add_scaled.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "base/row_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so::rows {
namespace HWY_NAMESPACE {

// Elements [begin, end); an element is read before it is written.
template <class T>
void add_scaled_as(T* out, const T* x, const T* delta, float scale, std::int64_t begin, std::int64_t end) {
  for_row(end - begin, [=](auto d, std::int64_t i) HWY_ATTR {
    const auto at = begin + i;
    const auto scaled = hn::Mul(load(d, delta + at), hn::Set(d, scale));
    store(d, x ? hn::Add(load(d, x + at), scaled) : scaled, out + at);
  });
}

template <class T>
void scale_sum_as(T* out, const T* x, const T* delta, const T* factor, std::int64_t begin, std::int64_t end) {
  const float scale = static_cast<float>(*factor);
  for_row(end - begin, [=](auto d, std::int64_t i) HWY_ATTR {
    const auto at = begin + i;
    const auto sum = x ? hn::Add(load(d, x + at), load(d, delta + at)) : load(d, delta + at);
    store(d, hn::Mul(sum, hn::Set(d, scale)), out + at);
  });
}

template <class T>
void add_gradient_as(T* dw, const float* sum, bool add, std::int64_t begin, std::int64_t end) {
  for_row(end - begin, [=](auto d, std::int64_t i) HWY_ATTR {
    const auto at = begin + i;
    store(d, add ? hn::Add(load(d, dw + at), load(d, sum + at)) : load(d, sum + at), dw + at);
  });
}

void add_gradient_elements(Tensor dw, Tensor sum, bool add, std::int64_t begin, std::int64_t end) {
  dw.dtype() == DType::bf16 ? add_gradient_as(dw.as<bf16>(), sum.as<float>(), add, begin, end)
                            : add_gradient_as(dw.as<float>(), sum.as<float>(), add, begin, end);
}

void add_scaled_elements(Tensor out, Tensor x, Tensor delta, float scale, std::int64_t begin, std::int64_t end) {
  const auto elements = [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    add_scaled_as<T>(out.as<T>(), x ? x.as<T>() : nullptr, delta.as<T>(), scale, begin, end);
  };
  out.dtype() == DType::bf16 ? elements(static_cast<bf16*>(nullptr)) : elements(static_cast<float*>(nullptr));
}

void scale_sum_elements(Tensor out, Tensor x, Tensor delta, Tensor factor, std::int64_t begin, std::int64_t end) {
  const auto elements = [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    scale_sum_as<T>(out.as<T>(), x ? x.as<T>() : nullptr, delta.as<T>(), factor.as<T>(), begin, end);
  };
  out.dtype() == DType::bf16 ? elements(static_cast<bf16*>(nullptr)) : elements(static_cast<float*>(nullptr));
}

}  // namespace HWY_NAMESPACE
}  // namespace so::rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {
namespace rows {
namespace {

HWY_EXPORT(add_scaled_elements);
HWY_EXPORT(add_gradient_elements);
HWY_EXPORT(scale_sum_elements);

void add_scaled(ThreadPool& pool, const Tensor& out, const Tensor& x, const Tensor& delta, float scale) {
  pool.parallel_for(out.size(), kElementsPerPiece, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_scaled_elements)(out, x, delta, scale, begin, end);
  });
}

void add_gradient(ThreadPool& pool, const Tensor& dw, const Tensor& sum, bool add) {
  pool.parallel_for(dw.size(), kElementsPerPiece, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_gradient_elements)(dw, sum, add, begin, end);
  });
}

void scale_sum(ThreadPool& pool, const Tensor& out, const Tensor& x, const Tensor& delta, const Tensor& factor) {
  pool.parallel_for(out.size(), kElementsPerPiece, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(scale_sum_elements)(out, x, delta, factor, begin, end);
  });
}

}  // namespace
}  // namespace rows

void CpuOps::add_gradient(Stream& stream, Tensor dw, Tensor sum, Accumulate mode) {
  expect_add_gradient(dw, sum);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("add_gradient", WorkCategory::memory_bound,
                      [=, &pool] { rows::add_gradient(pool, dw, sum, mode == Accumulate::add); });
}

void CpuOps::add_scaled(Stream& stream, Tensor out, Tensor x, Tensor delta, float scale) {
  expect_add_scaled(out, x, delta);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("add_scaled", WorkCategory::memory_bound,
                      [=, &pool] { rows::add_scaled(pool, out, x, delta, scale); });
}

void CpuOps::scale_sum(Stream& stream, Tensor out, Tensor x, Tensor delta, Tensor factor) {
  expect_scale_sum(out, x, delta, factor);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("scale_sum", WorkCategory::memory_bound,
                      [=, &pool] { rows::scale_sum(pool, out, x, delta, factor); });
}

}  // namespace so
#endif
