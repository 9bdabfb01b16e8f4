// How far each head of a token moves and what is left of its state, and the gradient of that. As plain as
// delta_gates.cpp.
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/sigmoid.h"
#include "ops/state_space_checks.h"

namespace so {
namespace {

template <class T>
void step_gate_rows(const Ops::StepGates& g, std::int64_t begin, std::int64_t end) {
  const std::int64_t heads = g.x.head_dim;
  const T *a_log = g.a_log.as<T>(), *dt_bias = g.dt_bias.as<T>();
  for (std::int64_t n = begin; n < end; ++n) {
    const T* x = head_at<T>(g.x, n, 0);
    float *decay = g.decay.as<float>() + n * heads, *step = g.step.as<float>() + n * heads;
    for (std::int64_t h = 0; h < heads; ++h) {
      const float s = softplus(static_cast<float>(x[h]) + static_cast<float>(dt_bias[h]));
      step[h] = s < g.low ? g.low : s > g.high ? g.high : s;  // a NaN stays one
      decay[h] = -std::exp(static_cast<float>(a_log[h])) * step[h];
    }
  }
}

// Their part of da_log and ddt_bias, f32 [H] each, is added to these.
template <class T>
void step_gate_grad_rows(const Ops::StepGatesGrad& g, float* da_log, float* ddt_bias, std::int64_t begin,
                         std::int64_t end) {
  const Ops::StepGates& f = g.forward;
  const std::int64_t heads = f.x.head_dim;
  const T *a_log = f.a_log.as<T>(), *dt_bias = f.dt_bias.as<T>();
  for (std::int64_t n = begin; n < end; ++n) {
    const T* x = head_at<T>(f.x, n, 0);
    T* dx = head_at<T>(g.dx, n, 0);
    const float *ddecay = g.ddecay.as<float>() + n * heads, *dstep = g.dstep.as<float>() + n * heads;
    for (std::int64_t h = 0; h < heads; ++h) {
      const float sum = static_cast<float>(x[h]) + static_cast<float>(dt_bias[h]), s = softplus(sum);
      const bool below = s<f.low, above = s> f.high;
      const float scaled = -std::exp(static_cast<float>(a_log[h])) * ddecay[h];
      const float d = below || above ? 0.0f : (dstep[h] + scaled) * Sigmoid(sum).value;
      da_log[h] += scaled * (below ? f.low : above ? f.high : s);
      ddt_bias[h] += d;
      dx[h] = static_cast<T>(d);
    }
  }
}

void step_gates_gradient(ThreadPool& pool, const Ops::StepGatesGrad& g) {
  const std::int64_t rows = g.forward.x.rows.dim(0), heads = g.forward.x.head_dim;
  BlockSums da_log(rows, heads), ddt_bias(rows, heads);
  pool.parallel_for(da_log.blocks(), 1, [&](std::int64_t first, std::int64_t last) {
    const auto grad_rows =
        g.forward.x.rows.dtype() == DType::bf16 ? step_gate_grad_rows<bf16> : step_gate_grad_rows<float>;
    for (std::int64_t b = first; b < last; ++b)
      grad_rows(g, da_log.block(b), ddt_bias.block(b), da_log.begin(b), da_log.end(b));
  });
  if (!g.da_log) return;
  da_log.finish(pool, g.da_log, g.da_log_mode);
  ddt_bias.finish(pool, g.ddt_bias, g.ddt_bias_mode);
}

}  // namespace

void CpuOps::step_gates(Stream& stream, const StepGates& g) {
  expect_step_gates("step_gates", g);
  cpu(stream).enqueue("step_gates", WorkCategory::memory_bound, [g, &pool = cpu(stream).pool()] {
    constexpr std::int64_t cost = 16;  // as much work as that many loads and stores
    pool.parallel_for(g.x.rows.dim(0), row_grain(cost * g.x.head_dim), [&](std::int64_t begin, std::int64_t end) {
      g.x.rows.dtype() == DType::bf16 ? step_gate_rows<bf16>(g, begin, end) : step_gate_rows<float>(g, begin, end);
    });
  });
}

void CpuOps::step_gates_grad(Stream& stream, const StepGatesGrad& g) {
  expect_step_gates_grad("step_gates_grad", g);
  cpu(stream).enqueue("step_gates_grad", WorkCategory::memory_bound,
                      [g, &pool = cpu(stream).pool()] { step_gates_gradient(pool, g); });
}

}  // namespace so
