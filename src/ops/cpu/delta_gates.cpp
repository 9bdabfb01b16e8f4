// What each head of a token forgets and learns, and the gradient of that. Few elements beside those of the layer's
// other ops, so plain code, which passes a NaN on.
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/sigmoid.h"
#include "ops/delta_checks.h"

namespace so {
namespace {

template <class T>
void delta_gate_rows(const Ops::DeltaGates& g, std::int64_t begin, std::int64_t end) {
  const std::int64_t heads = g.a.head_dim;
  const T *a_log = g.a_log.as<T>(), *dt_bias = g.dt_bias.as<T>();
  for (std::int64_t n = begin; n < end; ++n) {
    const T *a = head_at<T>(g.a, n, 0), *b = head_at<T>(g.b, n, 0);
    float *decay = g.decay.as<float>() + n * heads, *rate = g.rate.as<float>() + n * heads;
    for (std::int64_t h = 0; h < heads; ++h) {
      decay[h] =
          -std::exp(static_cast<float>(a_log[h])) * softplus(static_cast<float>(a[h]) + static_cast<float>(dt_bias[h]));
      rate[h] = Sigmoid(static_cast<float>(b[h])).value;
    }
  }
}

// Their part of da_log and ddt_bias, f32 [H] each, is added to these.
template <class T>
void delta_gate_grad_rows(const Ops::DeltaGatesGrad& g, float* da_log, float* ddt_bias, std::int64_t begin,
                          std::int64_t end) {
  const Ops::DeltaGates& f = g.forward;
  const std::int64_t heads = f.a.head_dim;
  const T *a_log = f.a_log.as<T>(), *dt_bias = f.dt_bias.as<T>();
  for (std::int64_t n = begin; n < end; ++n) {
    const T *a = head_at<T>(f.a, n, 0), *b = head_at<T>(f.b, n, 0);
    T *da = head_at<T>(g.da, n, 0), *db = head_at<T>(g.db, n, 0);
    const float *ddecay = g.ddecay.as<float>() + n * heads, *drate = g.drate.as<float>() + n * heads;
    for (std::int64_t h = 0; h < heads; ++h) {
      const float x = static_cast<float>(a[h]) + static_cast<float>(dt_bias[h]);
      const float scaled = -std::exp(static_cast<float>(a_log[h])) * ddecay[h], dx = scaled * Sigmoid(x).value;
      const Sigmoid rate(static_cast<float>(b[h]));
      da_log[h] += scaled * softplus(x);
      ddt_bias[h] += dx;
      da[h] = static_cast<T>(dx);
      db[h] = static_cast<T>(drate[h] * rate.value * rate.complement);
    }
  }
}

void delta_gates_gradient(ThreadPool& pool, const Ops::DeltaGatesGrad& g) {
  const std::int64_t rows = g.forward.a.rows.dim(0), heads = g.forward.a.head_dim;
  BlockSums da_log(rows, heads), ddt_bias(rows, heads);
  pool.parallel_for(da_log.blocks(), 1, [&](std::int64_t first, std::int64_t last) {
    const auto grad_rows =
        g.forward.a.rows.dtype() == DType::bf16 ? delta_gate_grad_rows<bf16> : delta_gate_grad_rows<float>;
    for (std::int64_t b = first; b < last; ++b)
      grad_rows(g, da_log.block(b), ddt_bias.block(b), da_log.begin(b), da_log.end(b));
  });
  if (!g.da_log) return;
  da_log.finish(pool, g.da_log, g.da_log_mode);
  ddt_bias.finish(pool, g.ddt_bias, g.ddt_bias_mode);
}

}  // namespace

void CpuOps::delta_gates(Stream& stream, const DeltaGates& g) {
  expect_delta_gates("delta_gates", g);
  cpu(stream).enqueue("delta_gates", WorkCategory::memory_bound, [g, &pool = cpu(stream).pool()] {
    constexpr std::int64_t cost = 16;  // as much work as that many loads and stores
    pool.parallel_for(g.a.rows.dim(0), row_grain(cost * g.a.head_dim), [&](std::int64_t begin, std::int64_t end) {
      g.a.rows.dtype() == DType::bf16 ? delta_gate_rows<bf16>(g, begin, end) : delta_gate_rows<float>(g, begin, end);
    });
  });
}

void CpuOps::delta_gates_grad(Stream& stream, const DeltaGatesGrad& g) {
  expect_delta_gates_grad("delta_gates_grad", g);
  cpu(stream).enqueue("delta_gates_grad", WorkCategory::memory_bound,
                      [g, &pool = cpu(stream).pool()] { delta_gates_gradient(pool, g); });
}

}  // namespace so
