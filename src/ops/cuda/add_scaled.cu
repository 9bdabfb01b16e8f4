// The sum of the residual stream and what a block adds to it, where no norm makes it; scaled copies; and gradients that
// were added up in fp32. Memory-bound.
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

template <class T, int N>
__global__ void __launch_bounds__(threads) add_gradient_kernel(T* dw, const float* sum, bool add, std::int64_t count) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * N;
  if (i >= count) return;
  float own[N], more[N];
  load<N>(more, sum + i);
  if (add) load<N>(own, dw + i);
#pragma unroll
  for (int j = 0; j < N; ++j) own[j] = add ? own[j] + more[j] : more[j];
  store<N>(dw + i, own);
}

// The factor is read from the device's memory: the host does not know it.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    scale_sum_kernel(T* out, const T* x, const T* delta, const T* factor, std::int64_t count) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * N;
  if (i >= count) return;
  const float scale = to_float(*factor);
  float sum[N], d[N];
  load<N>(d, delta + i);
  if (x) load<N>(sum, x + i);
#pragma unroll
  for (int j = 0; j < N; ++j) sum[j] = scale * (x ? sum[j] + d[j] : d[j]);
  store<N>(out + i, sum);
}

}  // namespace

void CudaOps::add_gradient(Stream& stream, Tensor dw, Tensor sum, Accumulate mode) {
  expect_add_gradient(dw, sum);
  const cudaStream_t on = enter(stream);
  const std::int64_t count = dw.size();
  if (count == 0) return;
  const bool add = mode == Accumulate::add;
  const auto* const from = static_cast<const float*>(sum.data());
  with_type(dw.dtype(), [&]<class T> {
    auto* const to = static_cast<T*>(dw.data());
    constexpr int N = pack_size<float>;
    if (rows_aligned<T, N>(count, to) && rows_aligned<float, N>(count, from))
      add_gradient_kernel<T, N><<<blocks_for(count, threads * N), threads, 0, on>>>(to, from, add, count);
    else
      add_gradient_kernel<T, 1><<<blocks_for(count, threads), threads, 0, on>>>(to, from, add, count);
  });
  SO_CUDA_LAUNCHED("add_gradient");
}

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

void CudaOps::scale_sum(Stream& stream, Tensor out, Tensor x, Tensor delta, Tensor factor) {
  expect_scale_sum(out, x, delta, factor);
  const cudaStream_t on = enter(stream);
  const std::int64_t count = out.size();
  if (count == 0) return;
  with_type(out.dtype(), [&]<class T> {
    auto* to = static_cast<T*>(out.data());
    const auto *from = static_cast<const T*>(x.data()), *d = static_cast<const T*>(delta.data());
    const auto* by = static_cast<const T*>(factor.data());
    constexpr int N = pack_size<T>;
    if (rows_aligned<T, N>(count, to, from, d))
      scale_sum_kernel<T, N><<<blocks_for(count, threads * N), threads, 0, on>>>(to, from, d, by, count);
    else
      scale_sum_kernel<T, 1><<<blocks_for(count, threads), threads, 0, on>>>(to, from, d, by, count);
  });
  SO_CUDA_LAUNCHED("scale_sum");
}

}  // namespace so
