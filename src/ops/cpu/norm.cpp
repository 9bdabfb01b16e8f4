// RMS normalisation with the residual addition before it, and its gradient. Rows may lie inside wider ones.
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/fp8_stripes.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/scratch.h"
#include "ops/fp8_checks.h"

#ifndef SO_OPS_CPU_NORM_CALLS
#define SO_OPS_CPU_NORM_CALLS
namespace so::rows {

struct NormCall {
  Heads out, x;
  Tensor sum, delta, inv_rms, weight;
  NormTerms terms;
};
struct NormGradCall {
  Heads dx, dout, x;
  Tensor residual, inv_rms, weight;
  float weight_offset;
};

}  // namespace so::rows
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/norm.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "base/row_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so::rows {
namespace HWY_NAMESPACE {

// Rows of `pitch` elements, of which the first are meant.
template <class T>
struct PitchedRows {
  T* data;
  std::int64_t pitch;
  HWY_INLINE T* row(std::int64_t n) const { return data + n * pitch; }
};
template <class T>
HWY_INLINE PitchedRows<T> rows_of(const Heads& heads) {
  return {heads.rows.as<std::remove_const_t<T>>() + heads.offset, heads.rows.dim(1)};
}

// The norm is taken of the sum as it is stored, rounded to T: that is what the backward pass will read.
template <class T>
HWY_INLINE float add_and_square(T* sum, const T* x, const T* delta, float scale, std::int64_t width) {
  return sum_row(width, [=](auto d, std::int64_t i) HWY_ATTR {
    store(d, hn::MulAdd(load(d, delta + i), hn::Set(d, scale), load(d, x + i)), sum + i);
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

// The norm of a row whose inverse rms is r.
template <class T>
HWY_INLINE void scale_row(T* to, const T* x, float r, const T* weight, float offset, std::int64_t width) {
  for_row(width, [=](auto d, std::int64_t i) HWY_ATTR {
    const auto w = hn::Add(load(d, weight + i), hn::Set(d, offset));
    store(d, hn::Mul(hn::Mul(load(d, x + i), hn::Set(d, r)), w), to + i);
  });
}

template <class T>
void add_rms_norm_as(PitchedRows<T> out, T* sum, float* inv_rms, PitchedRows<const T> x, const T* delta,
                     const T* weight, const NormTerms& terms, std::int64_t width, std::int64_t begin,
                     std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const std::int64_t at = n * width;
    const float squares =
        delta ? add_and_square(sum + at, x.row(n), delta + at, terms.delta_scale, width) : square(x.row(n), width);
    const float r = 1.0f / std::sqrt(squares / static_cast<float>(width) + terms.epsilon);
    inv_rms[n] = r;
    scale_row(out.row(n), delta ? sum + at : x.row(n), r, weight, terms.weight_offset, width);
  }
}

// Rows [begin, end) of the forward pass.
void add_rms_norm_rows(const NormCall& c, std::int64_t begin, std::int64_t end) {
  const auto rows = [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    add_rms_norm_as<T>(rows_of<T>(c.out), c.sum ? c.sum.as<T>() : nullptr, c.inv_rms.as<float>(), rows_of<const T>(c.x),
                       c.delta ? c.delta.as<T>() : nullptr, c.weight.as<T>(), c.terms, c.weight.size(), begin, end);
  };
  c.weight.dtype() == DType::bf16 ? rows(static_cast<bf16*>(nullptr)) : rows(static_cast<float*>(nullptr));
}

// The norm of rows whose inverse rms is there; out and x are matrices.
void norm_again_rows(const Tensor& out, const Tensor& x, const Tensor& inv_rms, const Tensor& weight, float offset) {
  const auto rows = [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    for (std::int64_t n = 0; n < x.dim(0); ++n)
      scale_row(out.as<T>() + n * x.dim(1), x.as<T>() + n * x.dim(1), inv_rms.as<float>()[n], weight.as<T>(), offset,
                x.dim(1));
  };
  weight.dtype() == DType::bf16 ? rows(static_cast<bf16*>(nullptr)) : rows(static_cast<float*>(nullptr));
}

// With y = x r w, r = 1/sqrt(mean(x^2) + epsilon) and g = dout w:
//   dx = r (g - x r mean(g x r)),   dw = sum over rows of dout x r.
template <class T>
void rms_norm_grad_as(PitchedRows<T> dx, float* dweight, PitchedRows<const T> dout, const T* residual,
                      PitchedRows<const T> x, const float* inv_rms, const T* weight, float offset, std::int64_t width,
                      std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const T *dy = dout.row(n), *xn = x.row(n);
    const float r = inv_rms[n];
    const float dot = sum_row(width, [=](auto d, std::int64_t i) HWY_ATTR {  // g.x
      const auto xi = load(d, xn + i), dyi = load(d, dy + i);
      const auto dw = hn::Mul(dyi, hn::Mul(xi, hn::Set(d, r)));
      store(d, hn::Add(load(d, dweight + i), dw), dweight + i);
      return hn::Mul(hn::Mul(dyi, hn::Add(load(d, weight + i), hn::Set(d, offset))), xi);
    });
    const float k = dot * r / static_cast<float>(width) * r;  // r mean(g x r)
    T* to = dx.row(n);
    const T* res = residual ? residual + n * width : nullptr;
    for_row(width, [=](auto d, std::int64_t i) HWY_ATTR {
      const auto g = hn::Mul(load(d, dy + i), hn::Add(load(d, weight + i), hn::Set(d, offset)));
      auto v = hn::Mul(hn::Set(d, r), hn::NegMulAdd(load(d, xn + i), hn::Set(d, k), g));
      if (res) v = hn::Add(v, load(d, res + i));
      store(d, v, to + i);
    });
  }
}

// Rows [begin, end) of the backward pass; their part of dweight is added to `dweight`, f32 [H].
void rms_norm_grad_rows(const NormGradCall& c, float* dweight, std::int64_t begin, std::int64_t end) {
  const auto rows = [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    rms_norm_grad_as<T>(rows_of<T>(c.dx), dweight, rows_of<const T>(c.dout), c.residual ? c.residual.as<T>() : nullptr,
                        rows_of<const T>(c.x), c.inv_rms.as<float>(), c.weight.as<T>(), c.weight_offset,
                        c.weight.size(), begin, end);
  };
  c.weight.dtype() == DType::bf16 ? rows(static_cast<bf16*>(nullptr)) : rows(static_cast<float*>(nullptr));
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
HWY_EXPORT(norm_again_rows);

void add_rms_norm(ThreadPool& pool, const NormCall& c) {
  pool.parallel_for(c.x.rows.dim(0), row_grain(c.weight.size()), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_rms_norm_rows)(c, begin, end);
  });
}

void rms_norm_grad(ThreadPool& pool, const NormGradCall& c, const Tensor& dweight, Accumulate mode) {
  BlockSums sums(c.x.rows.dim(0), c.weight.size());
  pool.parallel_for(sums.blocks(), 1, [&](std::int64_t first, std::int64_t last) {
    const auto grad_rows = HWY_DYNAMIC_DISPATCH(rms_norm_grad_rows);
    for (std::int64_t b = first; b < last; ++b) grad_rows(c, sums.block(b), sums.begin(b), sums.end(b));
  });
  sums.finish(pool, dweight, mode);
}

// A matrix as one head that fills its rows.
Heads whole(const Tensor& matrix) { return {matrix, 0, 1, matrix.rank() == 2 ? matrix.dim(1) : 0}; }

// c.out may be empty.
void fp8_add_rms_norm(ThreadPool& pool, const NormCall& c, const Tensor& out, const Tensor& x, const Fp8Matrix& to) {
  const std::int64_t n = x.dim(0), width = x.dim(1);
  for_each_fp8_stripe(pool, n, [&](std::int64_t first, std::int64_t count) {
    thread_local Scratch memory;
    const auto [room] = memory.carve(count * width);
    const auto part = [&](const Tensor& t) { return t ? t.rows(first, count) : t; };
    const Tensor stripe = out ? part(out) : Tensor(room, x.dtype(), {count, width});
    HWY_DYNAMIC_DISPATCH(add_rms_norm_rows)
    ({whole(stripe), whole(part(x)), part(c.sum), part(c.delta), part(c.inv_rms), c.weight, c.terms}, 0, count);
    fp8_quantise_stripe(to, {}, stripe, first, n);
  });
}

void fp8_quantise_norm(ThreadPool& pool, const Fp8Matrix& columns, const Tensor& x, const Tensor& inv_rms,
                       const Tensor& weight, float offset) {
  const std::int64_t n = x.dim(0), width = x.dim(1);
  for_each_fp8_stripe(pool, n, [&](std::int64_t first, std::int64_t count) {
    thread_local Scratch memory;
    const auto [room] = memory.carve(count * width);
    const Tensor stripe(room, x.dtype(), {count, width});
    HWY_DYNAMIC_DISPATCH(norm_again_rows)(stripe, x.rows(first, count), inv_rms.rows(first, count), weight, offset);
    fp8_quantise_stripe({}, columns, stripe, first, n);
  });
}

}  // namespace
}  // namespace rows

void CpuOps::add_rms_norm(Stream& stream, Tensor out, Tensor sum, Tensor inv_rms, Tensor x, Tensor delta, Tensor weight,
                          NormTerms terms, Fp8Matrix rows) {
  expect_add_rms_norm(out, sum, inv_rms, x, delta, weight, rows);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("add_rms_norm", WorkCategory::memory_bound, [=, &pool] {
    const rows::NormCall call{rows::whole(out), rows::whole(x), sum, delta, inv_rms, weight, terms};
    if (rows)
      rows::fp8_add_rms_norm(pool, call, out, x, rows);
    else
      rows::add_rms_norm(pool, call);
  });
}

void CpuOps::fp8_quantise_norm(Stream& stream, Fp8Matrix columns, Tensor x, Tensor inv_rms, Tensor weight,
                               float weight_offset) {
  expect_fp8_quantise_norm(columns, x, inv_rms, weight);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("fp8_quantise_norm", WorkCategory::memory_bound,
                      [=, &pool] { rows::fp8_quantise_norm(pool, columns, x, inv_rms, weight, weight_offset); });
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
  cpu(stream).enqueue("rms_norm_grad", WorkCategory::memory_bound, [=, &pool] {
    rows::rms_norm_grad(
        pool,
        {rows::whole(g.dx), rows::whole(g.dout), rows::whole(g.x), g.residual, g.inv_rms, g.weight, g.weight_offset},
        g.dweight, g.dweight_mode);
  });
}

void CpuOps::projection_norm(Stream& stream, Heads out, Heads in, HeadNorm norm) {
  expect_projection_norm("projection_norm", out, in, norm);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("projection_norm", WorkCategory::memory_bound, [=, &pool] {
    rows::add_rms_norm(pool,
                       {out, in, Tensor(), Tensor(), norm.inv_rms, norm.weight, {norm.epsilon, norm.weight_offset}});
  });
}

void CpuOps::projection_norm_grad(Stream& stream, const ProjectionNormGrad& g) {
  const char* op = "projection_norm_grad";
  expect_projection_norm(op, g.din, g.in, g.norm);
  expect_same_heads(op, "dout", g.dout, "din", g.din);
  expect_no_gaps(op, "dout", g.dout);
  expect_gradient(op, "dweight", g.dweight, g.din.rows.dtype(), {g.din.heads * g.din.head_dim});
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("projection_norm_grad", WorkCategory::memory_bound, [=, &pool] {
    rows::rms_norm_grad(pool, {g.din, g.dout, g.in, Tensor(), g.norm.inv_rms, g.norm.weight, g.norm.weight_offset},
                        g.dweight, g.dweight_mode);
  });
}

}  // namespace so
#endif
