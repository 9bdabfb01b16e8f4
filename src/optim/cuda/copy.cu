// Copies that are asked for together: a kernel for many of them, where each copy by itself would be one.
#include <algorithm>

#include "device/cuda/cuda_device.h"
#include "device/cuda/kernel.h"
#include "optim/cuda/cuda_engine_ops.h"

namespace so {
namespace {

constexpr int copy_threads = 256;
constexpr int most_copies = 64;  // of a launch: 1.5 KB of arguments
constexpr std::size_t copy_loads = 4,
                      copy_block = copy_threads * copy_loads * sizeof(uint4);  // bytes that a block copies

struct CopyJobs {
  DeviceCopy at[most_copies];
};

// Whole vectors where both ends are aligned, all loads of a thread before its first store; else bytes.
__global__ void __launch_bounds__(copy_threads) copy_kernel(const __grid_constant__ CopyJobs jobs) {
  const DeviceCopy& job = jobs.at[blockIdx.y];
  const std::size_t begin = blockIdx.x * copy_block;
  if (begin >= job.bytes) return;
  const std::size_t length = min(copy_block, job.bytes - begin);
  const auto addresses = reinterpret_cast<std::uintptr_t>(job.to) | reinterpret_cast<std::uintptr_t>(job.from);
  const std::size_t vectors = addresses % sizeof(uint4) == 0 ? length / sizeof(uint4) : 0;
  auto* const to = reinterpret_cast<uint4*>(job.to + begin);
  const auto* const from = reinterpret_cast<const uint4*>(job.from + begin);
  uint4 loaded[copy_loads];
#pragma unroll
  for (std::size_t i = 0; i < copy_loads; ++i)
    if (const std::size_t at = i * copy_threads + threadIdx.x; at < vectors) loaded[i] = from[at];
#pragma unroll
  for (std::size_t i = 0; i < copy_loads; ++i)
    if (const std::size_t at = i * copy_threads + threadIdx.x; at < vectors) to[at] = loaded[i];
  for (std::size_t at = vectors * sizeof(uint4) + threadIdx.x; at < length; at += copy_threads)
    job.to[begin + at] = job.from[begin + at];
}

}  // namespace

void CudaEngineOps::load_copy() { kernel::load_kernel(copy_kernel); }

void CudaEngineOps::copy(Stream& stream, std::span<const DeviceCopy> copies) {
  const cudaStream_t on = cuda_stream(stream);
  while (!copies.empty()) {
    const auto some = copies.first(std::min<std::size_t>(copies.size(), most_copies));
    CopyJobs jobs;
    std::copy(some.begin(), some.end(), jobs.at);
    std::size_t longest = 0;
    for (const DeviceCopy& job : some) longest = std::max(longest, job.bytes);
    copies = copies.subspan(some.size());
    if (longest == 0) continue;
    const dim3 grid(kernel::blocks_for(static_cast<std::int64_t>(longest), static_cast<std::int64_t>(copy_block)),
                    static_cast<unsigned>(some.size()));
    copy_kernel<<<grid, copy_threads, 0, on>>>(jobs);
    SO_CUDA_LAUNCHED("copy");
  }
}

}  // namespace so
