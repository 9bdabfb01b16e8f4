// RMS normalisation with the residual addition before it, and its gradient.
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/norm.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "base/row_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so::rows {
namespace HWY_NAMESPACE {

// The norm is taken of the sum as it is stored, rounded to T: that is what the backward pass will read.
template <class T>
HWY_INLINE float add_and_square(T* sum, const T* x, const T* delta, std::int64_t width) {
  return sum_row(width, [=](auto d, std::int64_t i) HWY_ATTR {
    store(d, hn::Add(load(d, x + i), load(d, delta + i)), sum + i);
    const auto s = load(d, sum + i);
    return hn::Mul(s, s);
  });
}

template <class T>
HWY_INLINE float square(const T* x, std::int64_t width) {
  return sum_row(width, [=](auto d, std::int64_t i) HWY_ATTR {
    const auto v = load(d, x + i);
    return hn::Mul(v, v);
  });
}

template <class T>
void add_rms_norm_as(T* out, T* sum, float* inv_rms, const T* x, const T* delta, const T* weight, float epsilon,
                     std::int64_t width, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const std::int64_t at = n * width;
    const float squares = delta ? add_and_square(sum + at, x + at, delta + at, width) : square(x + at, width);
    const float r = 1.0f / std::sqrt(squares / static_cast<float>(width) + epsilon);
    inv_rms[n] = r;
    const T* normed = (delta ? sum : x) + at;
    T* to = out + at;
    for_row(width, [=](auto d, std::int64_t i) HWY_ATTR {
      store(d, hn::Mul(hn::Mul(load(d, normed + i), hn::Set(d, r)), load(d, weight + i)), to + i);
    });
  }
}

// Rows [begin, end) of the forward pass.
void add_rms_norm_rows(Tensor out, Tensor sum, Tensor inv_rms, Tensor x, Tensor delta, Tensor weight, float epsilon,
                       std::int64_t begin, std::int64_t end) {
  const auto rows = [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    add_rms_norm_as<T>(out.as<T>(), delta ? sum.as<T>() : nullptr, inv_rms.as<float>(), x.as<T>(),
                       delta ? delta.as<T>() : nullptr, weight.as<T>(), epsilon, x.dim(1), begin, end);
  };
  x.dtype() == DType::bf16 ? rows(static_cast<bf16*>(nullptr)) : rows(static_cast<float*>(nullptr));
}

// With y = x r w, r = 1/sqrt(mean(x^2) + epsilon) and g = dout w:
//   dx = r (g - x r mean(g x r)),   dw = sum over rows of dout x r.
template <class T>
void rms_norm_grad_as(T* dx, float* dweight, const T* dout, const T* residual, const T* x, const float* inv_rms,
                      const T* weight, std::int64_t width, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const std::int64_t at = n * width;
    const T *dy = dout + at, *xn = x + at;
    const float r = inv_rms[n];
    const float dot = sum_row(width, [=](auto d, std::int64_t i) HWY_ATTR {  // g.x
      const auto xi = load(d, xn + i), dyi = load(d, dy + i);
      const auto dw = hn::Mul(dyi, hn::Mul(xi, hn::Set(d, r)));
      store(d, hn::Add(load(d, dweight + i), dw), dweight + i);
      return hn::Mul(hn::Mul(dyi, load(d, weight + i)), xi);
    });
    const float k = dot * r / static_cast<float>(width) * r;  // r mean(g x r)
    T* to = dx + at;
    const T* res = residual ? residual + at : nullptr;
    for_row(width, [=](auto d, std::int64_t i) HWY_ATTR {
      const auto g = hn::Mul(load(d, dy + i), load(d, weight + i));
      auto v = hn::Mul(hn::Set(d, r), hn::NegMulAdd(load(d, xn + i), hn::Set(d, k), g));
      if (res) v = hn::Add(v, load(d, res + i));
      store(d, v, to + i);
    });
  }
}

// Rows [begin, end) of the backward pass; their part of dweight is added to `dweight`, f32 [H].
void rms_norm_grad_rows(Tensor dx, float* dweight, Tensor dout, Tensor residual, Tensor x, Tensor inv_rms,
                        Tensor weight, std::int64_t begin, std::int64_t end) {
  const auto rows = [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    rms_norm_grad_as<T>(dx.as<T>(), dweight, dout.as<T>(), residual ? residual.as<T>() : nullptr, x.as<T>(),
                        inv_rms.as<float>(), weight.as<T>(), x.dim(1), begin, end);
  };
  x.dtype() == DType::bf16 ? rows(static_cast<bf16*>(nullptr)) : rows(static_cast<float*>(nullptr));
}

}  // namespace HWY_NAMESPACE
}  // namespace so::rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {
namespace rows {
namespace {

HWY_EXPORT(add_rms_norm_rows);
HWY_EXPORT(rms_norm_grad_rows);

void add_rms_norm(ThreadPool& pool, const Tensor& out, const Tensor& sum, const Tensor& inv_rms, const Tensor& x,
                  const Tensor& delta, const Tensor& weight, float epsilon) {
  pool.parallel_for(x.dim(0), row_grain(x.dim(1)), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_rms_norm_rows)(out, sum, inv_rms, x, delta, weight, epsilon, begin, end);
  });
}

void rms_norm_grad(ThreadPool& pool, const Ops::RmsNormGrad& g) {
  BlockSums sums(g.x.dim(0), g.x.dim(1));
  pool.parallel_for(sums.blocks(), 1, [&](std::int64_t first, std::int64_t last) {
    const auto grad_rows = HWY_DYNAMIC_DISPATCH(rms_norm_grad_rows);
    for (std::int64_t b = first; b < last; ++b)
      grad_rows(g.dx, sums.block(b), g.dout, g.residual, g.x, g.inv_rms, g.weight, sums.begin(b), sums.end(b));
  });
  sums.finish(pool, g.dweight, g.dweight_mode);
}

}  // namespace
}  // namespace rows

void CpuOps::add_rms_norm(Stream& stream, Tensor out, Tensor sum, Tensor inv_rms, Tensor x, Tensor delta, Tensor weight,
                          float epsilon) {
  const char* op = "add_rms_norm";
  SO_CHECK(x.rank() == 2, "{}: x is {}", op, shape_string(x.shape()));
  const DType dtype = x.dtype();
  const std::int64_t n = x.dim(0), width = x.dim(1);
  expect_compute_dtype(op, "x", dtype);
  expect_tensor(op, "x", x, dtype, {n, width});
  expect_tensor(op, "out", out, dtype, {n, width});
  expect_tensor(op, "inv_rms", inv_rms, DType::f32, {n});
  expect_tensor(op, "weight", weight, dtype, {width});
  SO_CHECK(static_cast<bool>(delta) == static_cast<bool>(sum), "{}: delta and sum are given together or not at all",
           op);
  if (delta) {
    expect_tensor(op, "delta", delta, dtype, {n, width});
    expect_tensor(op, "sum", sum, dtype, {n, width});
  }
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("add_rms_norm", WorkCategory::memory_bound,
                      [=, &pool] { rows::add_rms_norm(pool, out, sum, inv_rms, x, delta, weight, epsilon); });
}

void CpuOps::rms_norm_grad(Stream& stream, const RmsNormGrad& g) {
  const char* op = "rms_norm_grad";
  SO_CHECK(g.x.rank() == 2, "{}: x is {}", op, shape_string(g.x.shape()));
  const DType dtype = g.x.dtype();
  const std::int64_t n = g.x.dim(0), width = g.x.dim(1);
  expect_compute_dtype(op, "x", dtype);
  expect_tensor(op, "x", g.x, dtype, {n, width});
  expect_tensor(op, "dx", g.dx, dtype, {n, width});
  expect_tensor(op, "dout", g.dout, dtype, {n, width});
  if (g.residual) expect_tensor(op, "residual", g.residual, dtype, {n, width});
  expect_tensor(op, "inv_rms", g.inv_rms, DType::f32, {n});
  expect_tensor(op, "weight", g.weight, dtype, {width});
  expect_gradient(op, "dweight", g.dweight, dtype, {width});
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("rms_norm_grad", WorkCategory::memory_bound, [=, &pool] { rows::rms_norm_grad(pool, g); });
}

}  // namespace so
#endif
