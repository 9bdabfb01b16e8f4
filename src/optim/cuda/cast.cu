// Conversions between f32 and bf16 that are asked for together: a kernel for many of them.
#include <algorithm>

#include "device/cuda/cuda_device.h"
#include "device/cuda/kernel.h"
#include "optim/cuda/cuda_engine_ops.h"
#include "optim/engine_ops_checks.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 256;
constexpr int most_casts = 64;  // of a launch: 1.5 KB of arguments

struct CastJobs {
  struct Job {
    void* to;
    const void* from;
    std::int64_t count;
  };
  Job at[most_casts];
};

template <class To, class From, int N>
__global__ void __launch_bounds__(threads) cast_kernel(const __grid_constant__ CastJobs jobs) {
  const CastJobs::Job& job = jobs.at[blockIdx.y];
  auto* const out = static_cast<To*>(job.to);
  const auto* const in = static_cast<const From*>(job.from);
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * N;
  if (i + N <= job.count) {
    float x[N];
    load<N>(x, in + i);
    store<N>(out + i, x);
  } else {
    for (std::int64_t j = i; j < job.count; ++j) out[j] = from_float<To>(to_float(in[j]));
  }
}

template <class To, class From>
void launch_casts(std::span<const DeviceCast> casts, cudaStream_t on) {
  constexpr int N = 8;
  CastJobs jobs;
  std::int64_t longest = 0;
  bool aligned = true;
  for (std::size_t i = 0; i < casts.size(); ++i) {
    auto* const to = static_cast<To*>(casts[i].out.data());
    const auto* const from = static_cast<const From*>(casts[i].in.data());
    jobs.at[i] = {to, from, casts[i].in.size()};
    longest = std::max(longest, jobs.at[i].count);
    aligned = aligned && rows_aligned<To, N>(N, to) && rows_aligned<From, N>(N, from);
  }
  if (longest == 0) return;
  const auto grid = [&](int elements) {
    return dim3(blocks_for(longest, static_cast<std::int64_t>(threads) * elements),
                static_cast<unsigned>(casts.size()));
  };
  if (aligned)
    cast_kernel<To, From, N><<<grid(N), threads, 0, on>>>(jobs);
  else
    cast_kernel<To, From, 1><<<grid(1), threads, 0, on>>>(jobs);
  SO_CUDA_LAUNCHED("cast");
}

}  // namespace

void CudaEngineOps::load_cast() {
  load_kernel(cast_kernel<__nv_bfloat16, float, 8>);
  load_kernel(cast_kernel<__nv_bfloat16, float, 1>);
}

void CudaEngineOps::cast(Stream& stream, std::span<const DeviceCast> casts) {
  check_cast(casts);
  const cudaStream_t on = cuda_stream(stream);
  while (!casts.empty()) {
    const auto some = casts.first(std::min<std::size_t>(casts.size(), most_casts));
    casts = casts.subspan(some.size());
    if (some.front().out.dtype() == DType::bf16)
      launch_casts<__nv_bfloat16, float>(some, on);
    else
      launch_casts<float, __nv_bfloat16>(some, on);
  }
}

}  // namespace so
