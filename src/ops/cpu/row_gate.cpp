// The gate of a whole row, by the sigmoid of its product with a weight, and its gradient.
#include <cstdint>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/sigmoid.h"
#include "ops/expert_checks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/row_gate.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "base/row_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so::rows {
namespace HWY_NAMESPACE {

template <class T>
void row_gate_as(Tensor gates, Tensor x, Tensor weight, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = x.dim(1);
  const T* w = weight.as<T>();
  for (std::int64_t n = begin; n < end; ++n) {
    const T* row = x.as<T>() + n * width;
    const float product =
        sum_row(width, [=](auto d, std::int64_t i) HWY_ATTR { return hn::Mul(load(d, row + i), load(d, w + i)); });
    gates.as<float>()[n] = Sigmoid(product).value;
  }
}

// Rows [begin, end); their part of dweight is added to `dweight`, f32 [width], unless that is null.
template <class T>
void row_gate_grad_as(const Ops::RowGateGrad& g, float* dweight, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = g.x.dim(1);
  const T* w = g.weight.as<T>();
  for (std::int64_t n = begin; n < end; ++n) {
    const T* row = g.x.as<T>() + n * width;
    T* dx = g.dx.as<T>() + n * width;
    const float gate = g.gates.as<float>()[n], slope = g.dgates.as<float>()[n] * gate * (1.0f - gate);
    for_row(width, [=](auto d, std::int64_t i) HWY_ATTR {
      const auto by = hn::Set(d, slope);
      store(d, hn::MulAdd(by, load(d, w + i), load(d, dx + i)), dx + i);
      if (dweight) store(d, hn::MulAdd(by, load(d, row + i), load(d, dweight + i)), dweight + i);
    });
  }
}

void row_gate_rows(Tensor gates, Tensor x, Tensor weight, std::int64_t begin, std::int64_t end) {
  x.dtype() == DType::bf16 ? row_gate_as<bf16>(gates, x, weight, begin, end)
                           : row_gate_as<float>(gates, x, weight, begin, end);
}
void row_gate_grad_rows(const Ops::RowGateGrad& g, float* dweight, std::int64_t begin, std::int64_t end) {
  g.x.dtype() == DType::bf16 ? row_gate_grad_as<bf16>(g, dweight, begin, end)
                             : row_gate_grad_as<float>(g, dweight, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace so::rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {
namespace rows {
namespace {

HWY_EXPORT(row_gate_rows);
HWY_EXPORT(row_gate_grad_rows);

void row_gate_grad(ThreadPool& pool, const Ops::RowGateGrad& g) {
  BlockSums sums(g.x.dim(0), g.x.dim(1));
  pool.parallel_for(sums.blocks(), 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b)
      HWY_DYNAMIC_DISPATCH(row_gate_grad_rows)(g, g.dweight ? sums.block(b) : nullptr, sums.begin(b), sums.end(b));
  });
  if (g.dweight) sums.finish(pool, g.dweight, g.dweight_mode);
}

}  // namespace
}  // namespace rows

void CpuOps::row_gate(Stream& stream, Tensor gates, Tensor x, Tensor weight) {
  expect_row_gate("row_gate", gates, x, weight);
  cpu(stream).enqueue("row_gate", WorkCategory::memory_bound, [=, &pool = cpu(stream).pool()] {
    pool.parallel_for(x.dim(0), row_grain(x.dim(1)), [&](std::int64_t begin, std::int64_t end) {
      HWY_DYNAMIC_DISPATCH(rows::row_gate_rows)(gates, x, weight, begin, end);
    });
  });
}

void CpuOps::row_gate_grad(Stream& stream, const RowGateGrad& g) {
  expect_row_gate_grad("row_gate_grad", g);
  cpu(stream).enqueue("row_gate_grad", WorkCategory::memory_bound,
                      [g, &pool = cpu(stream).pool()] { rows::row_gate_grad(pool, g); });
}

}  // namespace so
#endif
