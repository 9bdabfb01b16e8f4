// Addition of f32 and bf16.
#include "device/cuda/cuda_device.h"
#include "device/cuda/kernel.h"
#include "optim/cuda/cuda_engine_ops.h"
#include "optim/engine_ops_checks.h"

namespace so {
namespace {

using namespace kernel;

constexpr int add_threads = 256;

template <class To, class From, int N>
__global__ void __launch_bounds__(add_threads) add_kernel(To* out, const From* in, std::int64_t count) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * add_threads + threadIdx.x) * N;
  if (i + N <= count) {
    float x[N], y[N];
    load<N>(x, out + i);
    load<N>(y, in + i);
    for (int k = 0; k < N; ++k) x[k] += y[k];
    store<N>(out + i, x);
  } else {
    for (std::int64_t j = i; j < count; ++j) out[j] = from_float<To>(to_float(out[j]) + to_float(in[j]));
  }
}

template <class To, class From>
void launch_add(Tensor out, Tensor in, cudaStream_t on) {
  constexpr int N = 8;
  auto* to = static_cast<To*>(out.data());
  const auto* from = static_cast<const From*>(in.data());
  const std::int64_t count = in.size();
  if (rows_aligned<To, N>(N, to) && rows_aligned<From, N>(N, from))
    add_kernel<To, From, N><<<blocks_for(count, add_threads * N), add_threads, 0, on>>>(to, from, count);
  else
    add_kernel<To, From, 1><<<blocks_for(count, add_threads), add_threads, 0, on>>>(to, from, count);
}

}  // namespace

void CudaEngineOps::add(Stream& stream, Tensor out, Tensor in) {
  check_add(out, in);
  const cudaStream_t on = cuda_stream(stream);
  if (in.size() == 0) return;
  if (out.dtype() == DType::bf16 && in.dtype() == DType::bf16)
    launch_add<__nv_bfloat16, __nv_bfloat16>(out, in, on);
  else if (out.dtype() == DType::bf16)
    launch_add<__nv_bfloat16, float>(out, in, on);
  else if (in.dtype() == DType::bf16)
    launch_add<float, __nv_bfloat16>(out, in, on);
  else
    launch_add<float, float>(out, in, on);
  SO_CUDA_LAUNCHED("add");
}

}  // namespace so
