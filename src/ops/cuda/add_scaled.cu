// The sum of the residual stream and what a block adds to it, where no norm makes it; and scaled copies. Memory-bound.
#include "device/cuda/kernel.h"
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 256;

// A thread does N elements, which it reads before it writes them, so that `out` may be `x` or `delta`. `x` may be null.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    add_scaled_kernel(T* out, const T* x, const T* delta, float scale, std::int64_t count) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * N;
  if (i >= count) return;
  float sum[N], d[N];
  load<N>(d, delta + i);
  if (x) load<N>(sum, x + i);
#pragma unroll
  for (int j = 0; j < N; ++j) sum[j] = x ? sum[j] + scale * d[j] : scale * d[j];
  store<N>(out + i, sum);
}

}  // namespace

void CudaOps::add_scaled(Stream& stream, Tensor out, Tensor x, Tensor delta, float scale) {
  const char* op = "add_scaled";
  expect_add_scaled(out, x, delta);
  const cudaStream_t on = enter(stream);
  const std::int64_t count = out.size();
  if (count == 0) return;
  with_type(out.dtype(), [&]<class T> {
    auto* to = static_cast<T*>(out.data());
    const auto *from = static_cast<const T*>(x.data()), *d = static_cast<const T*>(delta.data());
    constexpr int N = pack_size<T>;
    if (rows_aligned<T, N>(count, to, from, d))
      add_scaled_kernel<T, N><<<blocks_for(count, threads * N), threads, 0, on>>>(to, from, d, scale, count);
    else
      add_scaled_kernel<T, 1><<<blocks_for(count, threads), threads, 0, on>>>(to, from, d, scale, count);
  });
  SO_CUDA_LAUNCHED(op);
}

}  // namespace so
