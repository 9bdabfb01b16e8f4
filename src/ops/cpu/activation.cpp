// The activations of an MLP and their gradients: gated [Shazeer 2020], SwiGLU and GEGLU, and the square of ReLU.
#include <cstdint>
#include <type_traits>

#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/fp8_stripes.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/scratch.h"
#include "ops/fp8_checks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/activation.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "base/row_simd-inl.h"
#include "ops/cpu/sigmoid-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so::rows {
namespace HWY_NAMESPACE {

// Both activations are x sigmoid(z): z is x for SiLU, and 2 sqrt(2/pi) (x + 0.044715 x^3) for GELU by tanh, since
// (1 + tanh(u)) / 2 = sigmoid(2u). Here are z and dz/dx.
constexpr float gelu_linear = 1.5957691216057308f, gelu_cubic = gelu_linear * 0.044715f;

template <MlpActivation ACT, class D>
HWY_INLINE hn::Vec<D> logit(D d, hn::Vec<D> x) {
  if constexpr (ACT == MlpActivation::silu)
    return x;
  else
    return hn::Mul(x, hn::MulAdd(hn::Mul(x, x), hn::Set(d, gelu_cubic), hn::Set(d, gelu_linear)));
}
template <MlpActivation ACT, class D>
HWY_INLINE hn::Vec<D> logit_slope(D d, hn::Vec<D> x) {
  if constexpr (ACT == MlpActivation::silu)
    return hn::Set(d, 1.0f);
  else
    return hn::MulAdd(hn::Mul(x, x), hn::Set(d, 3 * gelu_cubic), hn::Set(d, gelu_linear));
}

template <MlpActivation ACT, class T>
void swiglu_as(T* out, const T* gate_up, std::int64_t width, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const T *gate = gate_up + n * 2 * width, *up = gate + width;
    T* to = out + n * width;
    for_row(width, [=](auto d, std::int64_t i) HWY_ATTR {
      const auto g = load(d, gate + i);
      auto s = hn::Undefined(d), complement = hn::Undefined(d);
      sigmoid(d, logit<ACT>(d, g), s, complement);
      store(d, hn::Mul(hn::Mul(g, s), load(d, up + i)), to + i);
    });
  }
}

// act'(g) = s + g s (1 - s) z', s = sigmoid(z). Where s or 1 - s is 0, z' may be too large for fp32: the product is 0
// then. Every element is read before it is written, so outputs may lie on inputs.
template <MlpActivation ACT, class T>
void swiglu_grad_as(T* dgate_up, T* activated, const T* dout, const T* gate_up, std::int64_t width, std::int64_t begin,
                    std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const T *gate = gate_up + n * 2 * width, *up = gate + width, *dy = dout + n * width;
    T *dgate = dgate_up + n * 2 * width, *dup = dgate + width;
    T* again = activated ? activated + n * width : nullptr;
    for_row(width, [=](auto d, std::int64_t i) HWY_ATTR {
      const auto g = load(d, gate + i), u = load(d, up + i), dyi = load(d, dy + i);
      auto s = hn::Undefined(d), complement = hn::Undefined(d);
      sigmoid(d, logit<ACT>(d, g), s, complement);
      const auto active = hn::Mul(g, s);
      if constexpr (ACT != MlpActivation::silu) {
        const auto flat = hn::Eq(hn::Mul(s, complement), hn::Zero(d));
        complement = hn::IfThenElse(flat, hn::Zero(d), hn::Mul(complement, logit_slope<ACT>(d, g)));
      }
      store(d, hn::Mul(dyi, active), dup + i);
      store(d, hn::Mul(hn::Mul(dyi, u), hn::MulAdd(active, complement, s)), dgate + i);
      if (again) store(d, hn::Mul(active, u), again + i);
    });
  }
}

// NaN stays NaN, since no comparison with it is true.
template <class D>
HWY_INLINE hn::Vec<D> relu(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);
}

template <class T>
void relu_squared_as(T* out, const T* up, std::int64_t width, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const T* from = up + n * width;
    T* to = out + n * width;
    for_row(width, [=](auto d, std::int64_t i) HWY_ATTR {
      const auto x = relu(d, load(d, from + i));
      store(d, hn::Mul(x, x), to + i);
    });
  }
}

// Outputs may lie on inputs, as above.
template <class T>
void relu_squared_grad_as(T* dup, T* activated, const T* dout, const T* up, std::int64_t width, std::int64_t begin,
                          std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const T *from = up + n * width, *dy = dout + n * width;
    T *to = dup + n * width, *again = activated ? activated + n * width : nullptr;
    for_row(width, [=](auto d, std::int64_t i) HWY_ATTR {
      const auto x = relu(d, load(d, from + i)), dyi = load(d, dy + i);
      store(d, hn::Mul(hn::Add(x, x), dyi), to + i);
      if (again) store(d, hn::Mul(x, x), again + i);
    });
  }
}

template <MlpActivation ACT, class T>
void activation_as(T* out, const T* inputs, std::int64_t width, std::int64_t begin, std::int64_t end) {
  if constexpr (ACT == MlpActivation::relu_squared)
    relu_squared_as(out, inputs, width, begin, end);
  else
    swiglu_as<ACT>(out, inputs, width, begin, end);
}
template <MlpActivation ACT, class T>
void activation_grad_as(T* dinputs, T* activated, const T* dout, const T* inputs, std::int64_t width,
                        std::int64_t begin, std::int64_t end) {
  if constexpr (ACT == MlpActivation::relu_squared)
    relu_squared_grad_as(dinputs, activated, dout, inputs, width, begin, end);
  else
    swiglu_grad_as<ACT>(dinputs, activated, dout, inputs, width, begin, end);
}

template <MlpActivation ACT>
void swiglu_rows_of(const Tensor& out, const Tensor& gate_up, std::int64_t begin, std::int64_t end) {
  if (out.dtype() == DType::bf16)
    activation_as<ACT>(out.as<bf16>(), gate_up.as<bf16>(), out.dim(1), begin, end);
  else
    activation_as<ACT>(out.as<float>(), gate_up.as<float>(), out.dim(1), begin, end);
}

template <MlpActivation ACT>
void swiglu_grad_rows_of(const Tensor& dgate_up, const Tensor& activated, const Tensor& dout, const Tensor& gate_up,
                         std::int64_t begin, std::int64_t end) {
  const auto rows = [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    activation_grad_as<ACT>(dgate_up.as<T>(), activated ? activated.as<T>() : nullptr, dout.as<T>(), gate_up.as<T>(),
                            dout.dim(1), begin, end);
  };
  dout.dtype() == DType::bf16 ? rows(static_cast<bf16*>(nullptr)) : rows(static_cast<float*>(nullptr));
}

void swiglu_rows(Tensor out, Tensor gate_up, MlpActivation activation, std::int64_t begin, std::int64_t end) {
  switch (activation) {
    case MlpActivation::silu:
      return swiglu_rows_of<MlpActivation::silu>(out, gate_up, begin, end);
    case MlpActivation::gelu_tanh:
      return swiglu_rows_of<MlpActivation::gelu_tanh>(out, gate_up, begin, end);
    case MlpActivation::relu_squared:
      return swiglu_rows_of<MlpActivation::relu_squared>(out, gate_up, begin, end);
  }
}

void swiglu_grad_rows(Tensor dgate_up, Tensor activated, Tensor dout, Tensor gate_up, MlpActivation activation,
                      std::int64_t begin, std::int64_t end) {
  switch (activation) {
    case MlpActivation::silu:
      return swiglu_grad_rows_of<MlpActivation::silu>(dgate_up, activated, dout, gate_up, begin, end);
    case MlpActivation::gelu_tanh:
      return swiglu_grad_rows_of<MlpActivation::gelu_tanh>(dgate_up, activated, dout, gate_up, begin, end);
    case MlpActivation::relu_squared:
      return swiglu_grad_rows_of<MlpActivation::relu_squared>(dgate_up, activated, dout, gate_up, begin, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace so::rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {
namespace rows {
namespace {

HWY_EXPORT(swiglu_rows);
HWY_EXPORT(swiglu_grad_rows);

void swiglu(ThreadPool& pool, const Tensor& out, const Tensor& gate_up, MlpActivation activation) {
  pool.parallel_for(out.dim(0), row_grain(out.dim(1)), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(swiglu_rows)(out, gate_up, activation, begin, end);
  });
}

void swiglu_grad(ThreadPool& pool, const Tensor& dgate_up, const Tensor& dout, const Tensor& gate_up,
                 const Tensor& activated, MlpActivation activation) {
  pool.parallel_for(dout.dim(0), row_grain(dout.dim(1)), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(swiglu_grad_rows)(dgate_up, activated, dout, gate_up, activation, begin, end);
  });
}

void fp8_swiglu(ThreadPool& pool, const Tensor& out, const Tensor& gate_up, MlpActivation activation,
                const Fp8Matrix& to) {
  const std::int64_t n = gate_up.dim(0), width = gate_up.dim(1) / inputs_of(activation);
  for_each_fp8_stripe(pool, n, [&](std::int64_t first, std::int64_t count) {
    thread_local Scratch memory;
    const auto [room] = memory.carve(count * width);
    const Tensor stripe = out ? out.rows(first, count) : Tensor(room, gate_up.dtype(), {count, width});
    HWY_DYNAMIC_DISPATCH(swiglu_rows)(stripe, gate_up.rows(first, count), activation, 0, count);
    fp8_quantise_stripe(to, {}, stripe, first, n);
  });
}

void fp8_swiglu_grad(ThreadPool& pool, const Ops::Fp8SwigluGrad& g) {
  const std::int64_t n = g.dout.dim(0), width = g.dout.dim(1), inputs = g.gate_up.dim(1);
  const DType t = g.dout.dtype();
  for_each_fp8_stripe(pool, n, [&](std::int64_t first, std::int64_t count) {
    thread_local Scratch memory;
    const auto [gradient_room, activated_room] = memory.carve(count * inputs, count * width);
    const Tensor dgate_up = g.dgate_up ? g.dgate_up.rows(first, count) : Tensor(gradient_room, t, {count, inputs}),
                 activated(activated_room, t, {count, width});
    HWY_DYNAMIC_DISPATCH(swiglu_grad_rows)
    (dgate_up, activated, g.dout.rows(first, count), g.gate_up.rows(first, count), g.activation, 0, count);
    fp8_quantise_stripe(g.rows, g.columns, dgate_up, first, n);
    if (g.activated) fp8_quantise_stripe({}, g.activated, activated, first, n);
  });
}

}  // namespace
}  // namespace rows

void CpuOps::swiglu(Stream& stream, Tensor out, Tensor gate_up, MlpActivation activation, Fp8Matrix rows) {
  expect_swiglu(out, gate_up, activation, rows);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("swiglu", WorkCategory::memory_bound, [=, &pool] {
    if (rows)
      rows::fp8_swiglu(pool, out, gate_up, activation, rows);
    else
      rows::swiglu(pool, out, gate_up, activation);
  });
}

void CpuOps::swiglu_grad(Stream& stream, Tensor dgate_up, Tensor dout, Tensor gate_up, Tensor activated,
                         MlpActivation activation) {
  const char* op = "swiglu_grad";
  SO_CHECK(dout.rank() == 2, "{}: dout is {}", op, shape_string(dout.shape()));
  expect_compute_dtype(op, "dout", dout.dtype());
  expect_tensor(op, "dout", dout, dout.dtype(), {dout.dim(0), dout.dim(1)});
  expect_tensor(op, "gate_up", gate_up, dout.dtype(), {dout.dim(0), inputs_of(activation) * dout.dim(1)});
  expect_tensor(op, "dgate_up", dgate_up, dout.dtype(), {dout.dim(0), inputs_of(activation) * dout.dim(1)});
  if (activated) expect_tensor(op, "activated", activated, dout.dtype(), {dout.dim(0), dout.dim(1)});
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("swiglu_grad", WorkCategory::memory_bound,
                      [=, &pool] { rows::swiglu_grad(pool, dgate_up, dout, gate_up, activated, activation); });
}

void CpuOps::fp8_swiglu_grad(Stream& stream, const Fp8SwigluGrad& g) {
  expect_fp8_swiglu_grad(g);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("fp8_swiglu_grad", WorkCategory::memory_bound, [g, &pool] { rows::fp8_swiglu_grad(pool, g); });
}

}  // namespace so
#endif
