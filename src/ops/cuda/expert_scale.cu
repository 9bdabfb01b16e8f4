// A learned factor of each expert on what its rows count, and its gradient. Small: a number for each row.
#include "device/cuda/kernel.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/expert_of.h"
#include "ops/expert_checks.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 256;

template <class T>
__global__ void __launch_bounds__(threads)
    scale_experts_kernel(float* out, const float* weights, const T* scale, const std::int32_t* offsets, int experts,
                         std::int64_t rows) {
  const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (r < rows) out[r] = weights[r] * to_float(scale[expert_of(offsets, experts, r)]);
}

// A block an expert; each thread adds up every `threads`-th of its rows, and the warps' sums are added in order.
template <class T, class D>
__global__ void __launch_bounds__(threads)
    scale_experts_grad_kernel(float* dweights, D* dscale, bool add, const float* dout, const float* weights,
                              const T* scale, const std::int32_t* offsets) {
  __shared__ float sums[threads / warp];
  const int e = static_cast<int>(blockIdx.x);
  const float factor = to_float(scale[e]);
  float sum = 0;
  for (std::int64_t r = offsets[e] + static_cast<std::int64_t>(threadIdx.x); r < offsets[e + 1]; r += threads) {
    const float d = dout[r];
    sum += d * weights[r];
    dweights[r] = d * factor;
  }
  sum = warp_sum(sum);
  if (threadIdx.x % warp == 0) sums[threadIdx.x / warp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float all = add ? to_float(dscale[e]) : 0.0f;
  for (int w = 0; w < threads / warp; ++w) all += sums[w];
  dscale[e] = from_float<D>(all);
}

}  // namespace

void CudaOps::scale_experts(Stream& stream, Tensor out, Tensor scale, const Routing& routing) {
  const char* op = "scale_experts";
  const RoutingSize size = expect_scale_experts(op, out, scale, routing);
  const cudaStream_t on = enter(stream);
  if (size.rows == 0) return;
  with_type(scale.dtype(), [&]<class T> {
    scale_experts_kernel<T><<<blocks_for(size.rows, threads), threads, 0, on>>>(
        out.as<float>(), routing.weights.as<float>(), static_cast<const T*>(scale.data()),
        routing.offsets.as<std::int32_t>(), static_cast<int>(size.experts), size.rows);
  });
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::scale_experts_grad(Stream& stream, const ScaleExpertsGrad& g) {
  const char* op = "scale_experts_grad";
  const RoutingSize size = expect_scale_experts_grad(op, g);
  const cudaStream_t on = enter(stream);
  with_type(g.scale.dtype(), [&]<class T> {
    with_type(g.dscale.dtype(), [&]<class D> {
      scale_experts_grad_kernel<T, D><<<blocks_for(size.experts, 1), threads, 0, on>>>(
          g.dweights.as<float>(), static_cast<D*>(g.dscale.data()), g.dscale_mode == Accumulate::add,
          g.dout.as<float>(), g.routing.weights.as<float>(), static_cast<const T*>(g.scale.data()),
          g.routing.offsets.as<std::int32_t>());
    });
  });
  SO_CUDA_LAUNCHED(op);
}

}  // namespace so
