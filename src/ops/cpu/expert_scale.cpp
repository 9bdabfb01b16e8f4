// A learned factor of each expert on what its rows count, and its gradient.
#include <cstdint>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"
#include "ops/expert_checks.h"

namespace so {
namespace {

float expert_factor(const Tensor& scale, std::int64_t e) {
  return scale.dtype() == DType::bf16 ? static_cast<float>(scale.as<bf16>()[e]) : scale.as<float>()[e];
}

// Calls body(expert, first row, past the last).
template <class Body>
void for_each_expert(ThreadPool& pool, const Routing& routing, const Body& body) {
  const auto* offsets = routing.offsets.as<std::int32_t>();
  pool.parallel_for(routing.offsets.dim(0) - 1, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t e = begin; e < end; ++e) body(e, offsets[e], offsets[e + 1]);
  });
}

}  // namespace

void CpuOps::scale_experts(Stream& stream, Tensor out, Tensor scale, const Routing& routing) {
  expect_scale_experts("scale_experts", out, scale, routing);
  cpu(stream).enqueue("scale_experts", WorkCategory::memory_bound, [=, &pool = cpu(stream).pool()] {
    for_each_expert(pool, routing, [&](std::int64_t e, std::int64_t begin, std::int64_t end) {
      const float factor = expert_factor(scale, e);
      for (std::int64_t r = begin; r < end; ++r) out.as<float>()[r] = routing.weights.as<float>()[r] * factor;
    });
  });
}

void CpuOps::scale_experts_grad(Stream& stream, const ScaleExpertsGrad& g) {
  expect_scale_experts_grad("scale_experts_grad", g);
  cpu(stream).enqueue("scale_experts_grad", WorkCategory::memory_bound, [g, &pool = cpu(stream).pool()] {
    const bool add = g.dscale_mode == Accumulate::add;
    for_each_expert(pool, g.routing, [&](std::int64_t e, std::int64_t begin, std::int64_t end) {
      const float factor = expert_factor(g.scale, e);
      double sum = add ? static_cast<double>(expert_factor(g.dscale, e)) : 0;
      for (std::int64_t r = begin; r < end; ++r) {
        const float d = g.dout.as<float>()[r];
        sum += static_cast<double>(d) * static_cast<double>(g.routing.weights.as<float>()[r]);
        g.dweights.as<float>()[r] = d * factor;
      }
      if (g.dscale.dtype() == DType::bf16)
        g.dscale.as<bf16>()[e] = bf16(static_cast<float>(sum));
      else
        g.dscale.as<float>()[e] = static_cast<float>(sum);
    });
  });
}

}  // namespace so
