// The sum over ranks, in their order.
#include "device/cuda/cuda_device.h"
#include "device/cuda/kernel.h"
#include "optim/cuda/cuda_engine_ops.h"
#include "optim/engine_ops_checks.h"

namespace so {
namespace {

using namespace kernel;

constexpr int sum_threads = 256;

// `others` has ranks - 1 rows of `count` elements.
template <class T, int N, bool ADD>
__global__ void __launch_bounds__(sum_threads)
    sum_of_ranks_kernel(float* out, const T* own, const T* others, int rank, int ranks, std::int64_t count) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * sum_threads + threadIdx.x) * N;
  if (i >= count) return;
  const auto values = [&](int r) { return r == rank ? own + i : others + (r < rank ? r : r - 1) * count + i; };
  float sum[N], next[N];
  load<N>(sum, values(0));
  for (int r = 1; r < ranks; ++r) {
    load<N>(next, values(r));
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] += next[k];
  }
  if constexpr (ADD) {
    load<N>(next, out + i);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] = next[k] + sum[k];
  }
  store<N>(out + i, sum);
}

template <class T, int N>
void launch_sum(Tensor out, Accumulate mode, Tensor own, Tensor others, int rank, cudaStream_t on) {
  const auto launch = [&](auto kernel) {
    kernel<<<blocks_for(own.size(), sum_threads * N), sum_threads, 0, on>>>(
        static_cast<float*>(out.data()), static_cast<const T*>(own.data()), static_cast<const T*>(others.data()), rank,
        static_cast<int>(others.dim(0)) + 1, own.size());
  };
  if (mode == Accumulate::add)
    launch(sum_of_ranks_kernel<T, N, true>);
  else
    launch(sum_of_ranks_kernel<T, N, false>);
}

}  // namespace

void CudaEngineOps::sum_of_ranks(Stream& stream, Tensor out, Accumulate mode, Tensor own, Tensor others, int rank) {
  check_sum_of_ranks(out, own, others, rank);
  const cudaStream_t on = cuda_stream(stream);
  if (own.size() == 0) return;
  with_type(own.dtype(), [&]<class T>() {
    constexpr int N = 8;
    const std::int64_t count = own.size();
    if (rows_aligned<T, N>(count, static_cast<const T*>(own.data()), static_cast<const T*>(others.data())) &&
        rows_aligned<float, N>(count, static_cast<const float*>(out.data())))
      launch_sum<T, N>(out, mode, own, others, rank, on);
    else
      launch_sum<T, 1>(out, mode, own, others, rank, on);
  });
  SO_CUDA_LAUNCHED("sum_of_ranks");
}

}  // namespace so
