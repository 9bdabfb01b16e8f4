// RMS norm of heads without a weight, and its gradient.
#include <cmath>
#include <cstdint>

#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/head_norm.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "base/row_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so::rows {
namespace HWY_NAMESPACE {

template <class T>
void head_norm_as(const Heads& out, const Heads& in, float* inv_rms, float epsilon, std::int64_t begin,
                  std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t h = 0; h < in.heads; ++h) {
      const T* from = head_at<T>(in, n, h);
      T* to = head_at<T>(out, n, h);
      const float squares = sum_row(in.head_dim, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto v = load(d, from + i);
        return hn::Mul(v, v);
      });
      const float r = 1.0f / std::sqrt(squares / static_cast<float>(in.head_dim) + epsilon);
      inv_rms[n * in.heads + h] = r;
      for_row(in.head_dim,
              [=](auto d, std::int64_t i) HWY_ATTR { store(d, hn::Mul(load(d, from + i), hn::Set(d, r)), to + i); });
    }
}

// With u = x r: dx = r (dout - u mean(dout u)). An element is read before it is written, so din may lie on dout.
template <class T>
void head_norm_grad_as(const Ops::HeadNormGrad& g, std::int64_t begin, std::int64_t end) {
  const bool add = g.din_mode == Accumulate::add;
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t h = 0; h < g.in.heads; ++h) {
      const T *from = head_at<T>(g.in, n, h), *dy = head_at<T>(g.dout, n, h);
      T* dx = head_at<T>(g.din, n, h);
      const float r = g.inv_rms.as<float>()[n * g.in.heads + h];
      const float dot = sum_row(
          g.in.head_dim, [=](auto d, std::int64_t i) HWY_ATTR { return hn::Mul(load(d, from + i), load(d, dy + i)); });
      const float k = dot * r / static_cast<float>(g.in.head_dim) * r;  // r mean(dout u)
      for_row(g.in.head_dim, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto rest = hn::NegMulAdd(load(d, from + i), hn::Set(d, k), load(d, dy + i));
        const auto own = hn::Mul(hn::Set(d, r), rest);
        store(d, add ? hn::Add(load(d, dx + i), own) : own, dx + i);
      });
    }
}

void head_norm_rows(const Heads& out, const Heads& in, float* inv_rms, float epsilon, std::int64_t begin,
                    std::int64_t end) {
  in.rows.dtype() == DType::bf16 ? head_norm_as<bf16>(out, in, inv_rms, epsilon, begin, end)
                                 : head_norm_as<float>(out, in, inv_rms, epsilon, begin, end);
}
void head_norm_grad_rows(const Ops::HeadNormGrad& g, std::int64_t begin, std::int64_t end) {
  g.in.rows.dtype() == DType::bf16 ? head_norm_grad_as<bf16>(g, begin, end) : head_norm_grad_as<float>(g, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace so::rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {
namespace rows {
namespace {

HWY_EXPORT(head_norm_rows);
HWY_EXPORT(head_norm_grad_rows);

}  // namespace
}  // namespace rows

void CpuOps::head_norm(Stream& stream, Heads out, Heads in, Tensor inv_rms, float epsilon) {
  expect_head_norm(out, in, inv_rms);
  cpu(stream).enqueue("head_norm", WorkCategory::memory_bound, [=, &pool = cpu(stream).pool()] {
    pool.parallel_for(in.rows.dim(0), row_grain(in.heads * in.head_dim), [&](std::int64_t begin, std::int64_t end) {
      HWY_DYNAMIC_DISPATCH(rows::head_norm_rows)(out, in, inv_rms.as<float>(), epsilon, begin, end);
    });
  });
}

void CpuOps::head_norm_grad(Stream& stream, const HeadNormGrad& g) {
  expect_head_norm_grad(g);
  cpu(stream).enqueue("head_norm_grad", WorkCategory::memory_bound, [g, &pool = cpu(stream).pool()] {
    pool.parallel_for(g.in.rows.dim(0), row_grain(g.in.heads * g.in.head_dim),
                      [&](std::int64_t begin, std::int64_t end) {
                        HWY_DYNAMIC_DISPATCH(rows::head_norm_grad_rows)(g, begin, end);
                      });
  });
}

}  // namespace so
#endif
