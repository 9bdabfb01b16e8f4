// Gates on heads: by a sigmoid alone, or by SiLU behind or before an RMS norm of each head, and their gradients.
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"
#include "ops/delta_checks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gates.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "base/row_simd-inl.h"
#include "ops/cpu/sigmoid-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so::rows {
namespace HWY_NAMESPACE {

template <class T>
void sigmoid_gate_as(const Heads& out, const Heads& x, const Heads& gate, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t h = 0; h < x.heads; ++h) {
      const T *from = head_at<T>(x, n, h), *gates = head_at<T>(gate, n, h);
      T* to = head_at<T>(out, n, h);
      for_row(x.head_dim, [=](auto d, std::int64_t i) HWY_ATTR {
        auto s = hn::Undefined(d), complement = hn::Undefined(d);
        sigmoid(d, load(d, gates + i), s, complement);
        store(d, hn::Mul(load(d, from + i), s), to + i);
      });
    }
}

// Every element is read before it is written, so outputs may lie on inputs.
template <class T>
void sigmoid_gate_grad_as(const Ops::SigmoidGateGrad& g, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t h = 0; h < g.x.heads; ++h) {
      const T *from = head_at<T>(g.x, n, h), *gates = head_at<T>(g.gate, n, h), *dy = head_at<T>(g.dout, n, h);
      T *dx = head_at<T>(g.dx, n, h), *dgate = head_at<T>(g.dgate, n, h);
      T* again = g.gated.rows ? head_at<T>(g.gated, n, h) : nullptr;
      for_row(g.x.head_dim, [=](auto d, std::int64_t i) HWY_ATTR {
        auto s = hn::Undefined(d), complement = hn::Undefined(d);
        sigmoid(d, load(d, gates + i), s, complement);
        const auto v = load(d, from + i), dyi = load(d, dy + i);
        const auto gated = hn::Mul(v, s);
        store(d, hn::Mul(dyi, s), dx + i);
        store(d, hn::Mul(hn::Mul(dyi, gated), complement), dgate + i);
        if (again) store(d, gated, again + i);
      });
    }
}

template <class T>
void gated_norm_as(const Heads& out, const Heads& x, const Heads& gate, const HeadNorm& norm, std::int64_t begin,
                   std::int64_t end) {
  const T* weight = norm.weight.as<T>();
  const float offset = norm.weight_offset;
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t h = 0; h < x.heads; ++h) {
      const T *from = head_at<T>(x, n, h), *gates = head_at<T>(gate, n, h);
      T* to = head_at<T>(out, n, h);
      const float squares = sum_row(x.head_dim, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto v = load(d, from + i);
        return hn::Mul(v, v);
      });
      const float r = 1.0f / std::sqrt(squares / static_cast<float>(x.head_dim) + norm.epsilon);
      norm.inv_rms.as<float>()[n * x.heads + h] = r;
      for_row(x.head_dim, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto z = load(d, gates + i);
        auto s = hn::Undefined(d), complement = hn::Undefined(d);
        sigmoid(d, z, s, complement);
        const auto w = hn::Add(load(d, weight + i), hn::Set(d, offset));
        const auto normed = hn::Mul(hn::Mul(load(d, from + i), hn::Set(d, r)), w);
        store(d, hn::Mul(normed, hn::Mul(z, s)), to + i);
      });
    }
}

// With u = x r, y = u w and the gate a = silu(z):
//   dz = dout y silu'(z),  dw = sum over rows of dout a u,  dx = r (g - u mean(g u)) for g = dout a w.
// Elements are read before they are written, and g is kept beside, so outputs may lie on inputs.
template <class T>
void gated_norm_grad_as(const Ops::GatedNormGrad& g, float* dweight, std::int64_t begin, std::int64_t end) {
  const std::int64_t head_dim = g.x.head_dim;
  const T* weight = g.norm.weight.as<T>();
  const float offset = g.norm.weight_offset;
  std::vector<float> kept(static_cast<std::size_t>(head_dim));
  float* dnormed = kept.data();
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t h = 0; h < g.x.heads; ++h) {
      const T *from = head_at<T>(g.x, n, h), *gates = head_at<T>(g.gate, n, h), *dy = head_at<T>(g.dout, n, h);
      T *dx = head_at<T>(g.dx, n, h), *dgate = head_at<T>(g.dgate, n, h);
      T* again = g.normed.rows ? head_at<T>(g.normed, n, h) : nullptr;
      const float r = g.norm.inv_rms.as<float>()[n * g.x.heads + h];
      const float dot = sum_row(head_dim, [=](auto d, std::int64_t i) HWY_ATTR {  // g.x
        const auto v = load(d, from + i), z = load(d, gates + i), dyi = load(d, dy + i);
        auto s = hn::Undefined(d), complement = hn::Undefined(d);
        sigmoid(d, z, s, complement);
        const auto a = hn::Mul(z, s), u = hn::Mul(v, hn::Set(d, r));
        const auto w = hn::Add(load(d, weight + i), hn::Set(d, offset)), y = hn::Mul(u, w);
        const auto da = hn::Mul(dyi, a);
        store(d, hn::MulAdd(da, u, load(d, dweight + i)), dweight + i);
        store(d, hn::Mul(hn::Mul(dyi, y), hn::MulAdd(a, complement, s)), dgate + i);
        if (again) store(d, hn::Mul(y, a), again + i);
        const auto gi = hn::Mul(da, w);
        store(d, gi, dnormed + i);
        return hn::Mul(gi, v);
      });
      const float k = dot * r / static_cast<float>(head_dim) * r;  // r mean(g u)
      for_row(head_dim, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto v = hn::NegMulAdd(load(d, from + i), hn::Set(d, k), load(d, dnormed + i));
        store(d, hn::Mul(hn::Set(d, r), v), dx + i);
      });
    }
}

// y = x silu(z) waits in `kept`.
template <class T>
void gate_then_norm_as(const Heads& out, const Heads& x, const Heads& gate, const HeadNorm& norm, std::int64_t begin,
                       std::int64_t end) {
  const std::int64_t head_dim = x.head_dim;
  const float offset = norm.weight_offset;
  std::vector<float> kept(static_cast<std::size_t>(head_dim));
  float* y = kept.data();
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t h = 0; h < x.heads; ++h) {
      const T *from = head_at<T>(x, n, h), *gates = head_at<T>(gate, n, h),
              *weight = norm.weight.as<T>() + h * head_dim;
      T* to = head_at<T>(out, n, h);
      const float squares = sum_row(head_dim, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto z = load(d, gates + i);
        auto s = hn::Undefined(d), complement = hn::Undefined(d);
        sigmoid(d, z, s, complement);
        const auto v = hn::Mul(load(d, from + i), hn::Mul(z, s));
        store(d, v, y + i);
        return hn::Mul(v, v);
      });
      const float r = 1.0f / std::sqrt(squares / static_cast<float>(head_dim) + norm.epsilon);
      norm.inv_rms.as<float>()[n * x.heads + h] = r;
      for_row(head_dim, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto w = hn::Add(load(d, weight + i), hn::Set(d, offset));
        store(d, hn::Mul(hn::Mul(load(d, y + i), hn::Set(d, r)), w), to + i);
      });
    }
}

// With a = silu(z), y = x a, u = y r and out = u w:
//   dw = sum over rows of dout u,  dy = r (g - u mean(g u)) for g = dout w,  dx = dy a,  dz = dy x silu'(z).
// Elements are read before they are written, and g is kept beside, so outputs may lie on inputs.
template <class T>
void gate_then_norm_grad_as(const Ops::GateThenNormGrad& g, float* dweight, std::int64_t begin, std::int64_t end) {
  const std::int64_t head_dim = g.x.head_dim;
  const float offset = g.norm.weight_offset;
  std::vector<float> kept(static_cast<std::size_t>(head_dim));
  float* dnormed = kept.data();
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t h = 0; h < g.x.heads; ++h) {
      const T *from = head_at<T>(g.x, n, h), *gates = head_at<T>(g.gate, n, h), *dy = head_at<T>(g.dout, n, h);
      T *dx = head_at<T>(g.dx, n, h), *dgate = head_at<T>(g.dgate, n, h);
      T* again = g.normed.rows ? head_at<T>(g.normed, n, h) : nullptr;
      const T* weight = g.norm.weight.as<T>() + h * head_dim;
      float* dw = dweight + h * head_dim;
      const float r = g.norm.inv_rms.as<float>()[n * g.x.heads + h];
      const float dot = sum_row(head_dim, [=](auto d, std::int64_t i) HWY_ATTR {  // g.y
        const auto z = load(d, gates + i), dyi = load(d, dy + i);
        auto s = hn::Undefined(d), complement = hn::Undefined(d);
        sigmoid(d, z, s, complement);
        const auto y = hn::Mul(load(d, from + i), hn::Mul(z, s)), u = hn::Mul(y, hn::Set(d, r));
        const auto w = hn::Add(load(d, weight + i), hn::Set(d, offset)), gi = hn::Mul(dyi, w);
        store(d, hn::MulAdd(dyi, u, load(d, dw + i)), dw + i);
        store(d, gi, dnormed + i);
        if (again) store(d, hn::Mul(u, w), again + i);
        return hn::Mul(gi, y);
      });
      const float k = dot * r / static_cast<float>(head_dim) * r;  // r mean(g u)
      for_row(head_dim, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto v = load(d, from + i), z = load(d, gates + i);
        auto s = hn::Undefined(d), complement = hn::Undefined(d);
        sigmoid(d, z, s, complement);
        const auto a = hn::Mul(z, s), y = hn::Mul(v, a);
        const auto gated = hn::Mul(hn::Set(d, r), hn::NegMulAdd(y, hn::Set(d, k), load(d, dnormed + i)));
        store(d, hn::Mul(gated, a), dx + i);
        store(d, hn::Mul(hn::Mul(gated, v), hn::MulAdd(a, complement, s)), dgate + i);
      });
    }
}

void sigmoid_gate_rows(const Heads& out, const Heads& x, const Heads& gate, std::int64_t begin, std::int64_t end) {
  x.rows.dtype() == DType::bf16 ? sigmoid_gate_as<bf16>(out, x, gate, begin, end)
                                : sigmoid_gate_as<float>(out, x, gate, begin, end);
}
void sigmoid_gate_grad_rows(const Ops::SigmoidGateGrad& g, std::int64_t begin, std::int64_t end) {
  g.x.rows.dtype() == DType::bf16 ? sigmoid_gate_grad_as<bf16>(g, begin, end)
                                  : sigmoid_gate_grad_as<float>(g, begin, end);
}
void gated_norm_rows(const Heads& out, const Heads& x, const Heads& gate, const HeadNorm& norm, std::int64_t begin,
                     std::int64_t end) {
  x.rows.dtype() == DType::bf16 ? gated_norm_as<bf16>(out, x, gate, norm, begin, end)
                                : gated_norm_as<float>(out, x, gate, norm, begin, end);
}
// Rows [begin, end); their part of dweight is added to `dweight`, f32 [head_dim].
void gated_norm_grad_rows(const Ops::GatedNormGrad& g, float* dweight, std::int64_t begin, std::int64_t end) {
  g.x.rows.dtype() == DType::bf16 ? gated_norm_grad_as<bf16>(g, dweight, begin, end)
                                  : gated_norm_grad_as<float>(g, dweight, begin, end);
}
void gate_then_norm_rows(const Heads& out, const Heads& x, const Heads& gate, const HeadNorm& norm, std::int64_t begin,
                         std::int64_t end) {
  x.rows.dtype() == DType::bf16 ? gate_then_norm_as<bf16>(out, x, gate, norm, begin, end)
                                : gate_then_norm_as<float>(out, x, gate, norm, begin, end);
}
// The same of dweight, f32 [heads * head_dim].
void gate_then_norm_grad_rows(const Ops::GateThenNormGrad& g, float* dweight, std::int64_t begin, std::int64_t end) {
  g.x.rows.dtype() == DType::bf16 ? gate_then_norm_grad_as<bf16>(g, dweight, begin, end)
                                  : gate_then_norm_grad_as<float>(g, dweight, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace so::rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {
namespace rows {
namespace {

HWY_EXPORT(sigmoid_gate_rows);
HWY_EXPORT(sigmoid_gate_grad_rows);
HWY_EXPORT(gated_norm_rows);
HWY_EXPORT(gated_norm_grad_rows);
HWY_EXPORT(gate_then_norm_rows);
HWY_EXPORT(gate_then_norm_grad_rows);

// rows(g, dweight, begin, end) does rows, and adds their part of dweight.
template <class Grad, class Rows>
void norm_and_gate_grad(ThreadPool& pool, const Grad& g, const Rows& rows) {
  BlockSums sums(g.x.rows.dim(0), g.dweight.size());
  pool.parallel_for(sums.blocks(), 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b) rows(g, sums.block(b), sums.begin(b), sums.end(b));
  });
  sums.finish(pool, g.dweight, g.dweight_mode);
}

std::int64_t heads_grain(const Heads& heads) { return row_grain(heads.heads * heads.head_dim); }

}  // namespace
}  // namespace rows

void CpuOps::sigmoid_gate(Stream& stream, Heads out, Heads x, Heads gate) {
  expect_sigmoid_gate("sigmoid_gate", out, x, gate);
  cpu(stream).enqueue("sigmoid_gate", WorkCategory::memory_bound, [=, &pool = cpu(stream).pool()] {
    pool.parallel_for(x.rows.dim(0), rows::heads_grain(x), [&](std::int64_t begin, std::int64_t end) {
      HWY_DYNAMIC_DISPATCH(rows::sigmoid_gate_rows)(out, x, gate, begin, end);
    });
  });
}

void CpuOps::sigmoid_gate_grad(Stream& stream, const SigmoidGateGrad& g) {
  expect_sigmoid_gate_grad("sigmoid_gate_grad", g);
  cpu(stream).enqueue("sigmoid_gate_grad", WorkCategory::memory_bound, [g, &pool = cpu(stream).pool()] {
    pool.parallel_for(g.x.rows.dim(0), rows::heads_grain(g.x), [&](std::int64_t begin, std::int64_t end) {
      HWY_DYNAMIC_DISPATCH(rows::sigmoid_gate_grad_rows)(g, begin, end);
    });
  });
}

void CpuOps::gated_norm(Stream& stream, Heads out, Heads x, Heads gate, HeadNorm norm) {
  expect_gated_norm("gated_norm", out, x, gate, norm);
  cpu(stream).enqueue("gated_norm", WorkCategory::memory_bound, [=, &pool = cpu(stream).pool()] {
    pool.parallel_for(x.rows.dim(0), rows::heads_grain(x), [&](std::int64_t begin, std::int64_t end) {
      HWY_DYNAMIC_DISPATCH(rows::gated_norm_rows)(out, x, gate, norm, begin, end);
    });
  });
}

void CpuOps::gated_norm_grad(Stream& stream, const GatedNormGrad& g) {
  expect_gated_norm_grad("gated_norm_grad", g);
  cpu(stream).enqueue("gated_norm_grad", WorkCategory::memory_bound, [g, &pool = cpu(stream).pool()] {
    rows::norm_and_gate_grad(pool, g, [](const auto&... args) {
      HWY_DYNAMIC_DISPATCH(rows::gated_norm_grad_rows)(args...);
    });
  });
}

void CpuOps::gate_then_norm(Stream& stream, Heads out, Heads x, Heads gate, HeadNorm norm) {
  expect_gate_then_norm("gate_then_norm", out, x, gate, norm);
  cpu(stream).enqueue("gate_then_norm", WorkCategory::memory_bound, [=, &pool = cpu(stream).pool()] {
    pool.parallel_for(x.rows.dim(0), rows::heads_grain(x), [&](std::int64_t begin, std::int64_t end) {
      HWY_DYNAMIC_DISPATCH(rows::gate_then_norm_rows)(out, x, gate, norm, begin, end);
    });
  });
}

void CpuOps::gate_then_norm_grad(Stream& stream, const GateThenNormGrad& g) {
  expect_gate_then_norm_grad("gate_then_norm_grad", g);
  cpu(stream).enqueue("gate_then_norm_grad", WorkCategory::memory_bound, [g, &pool = cpu(stream).pool()] {
    rows::norm_and_gate_grad(pool, g, [](const auto&... args) {
      HWY_DYNAMIC_DISPATCH(rows::gate_then_norm_grad_rows)(args...);
    });
  });
}

}  // namespace so
#endif
