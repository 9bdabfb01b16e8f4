// Conversion between f32 and bf16.
#include "device/cuda/cuda_device.h"
#include "device/cuda/kernel.h"
#include "optim/cuda/cuda_engine_ops.h"
#include "optim/engine_ops_checks.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 256;

template <class To, class From, int N>
__global__ void __launch_bounds__(threads) cast_kernel(To* out, const From* in, std::int64_t count) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * N;
  if (i + N <= count) {
    float x[N];
    load<N>(x, in + i);
    store<N>(out + i, x);
  } else {
    for (std::int64_t j = i; j < count; ++j) out[j] = from_float<To>(to_float(in[j]));
  }
}

template <class To, class From>
void launch_cast(Tensor out, Tensor in, cudaStream_t on) {
  constexpr int N = 8;
  auto* to = static_cast<To*>(out.data());
  const auto* from = static_cast<const From*>(in.data());
  const std::int64_t count = in.size();
  if (rows_aligned<To, N>(N, to) && rows_aligned<From, N>(N, from))
    cast_kernel<To, From, N><<<blocks_for(count, threads * N), threads, 0, on>>>(to, from, count);
  else
    cast_kernel<To, From, 1><<<blocks_for(count, threads), threads, 0, on>>>(to, from, count);
}

}  // namespace

void CudaEngineOps::cast(Stream& stream, Tensor out, Tensor in) {
  check_cast(out, in);
  const cudaStream_t on = cuda_stream(stream);
  if (in.size() == 0) return;
  if (out.dtype() == DType::bf16)
    launch_cast<__nv_bfloat16, float>(out, in, on);
  else
    launch_cast<float, __nv_bfloat16>(out, in, on);
  SO_CUDA_LAUNCHED("cast");
}

}  // namespace so
