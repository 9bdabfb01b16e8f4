// Sum of squares and count of non-finite elements, in the order that optim/engine_ops_checks.h explains, so that the
// verdict on a step is the same to the last bit wherever it is taken.
#include <algorithm>

#include "device/cuda/cuda_device.h"
#include "device/cuda/kernel.h"
#include "optim/cuda/cuda_engine_ops.h"
#include "optim/engine_ops_checks.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 256, warps = threads / warp;
constexpr std::int64_t block_elements = StatsOrder::block;
static_assert(StatsOrder::lanes == warp);

constexpr int most_gradients = EngineOps::stats_at_a_time;

struct StatsJobs {
  struct {
    GradStats* out;
    const void* grad;
    std::int64_t count;
    GradStats* parts;  // a block's each
  } at[most_gradients];
};

// A warp does a block. A lane's elements are 32 apart, so a warp reads whole rows of 32, bf16 two rows at a time as
// words that lanes then exchange; several rows are fetched before the first is added, since additions must wait for one
// another. The sum is finite exactly if every element is (2^63 squares below 2^256 stay below 2^319), so only blocks
// whose sum is not are read again to count the elements to blame.
template <class T>
__global__ void __launch_bounds__(threads) block_stats_kernel(const __grid_constant__ StatsJobs jobs) {
  const auto& job = jobs.at[blockIdx.y];
  const T* const grad = static_cast<const T*>(job.grad);
  const std::int64_t count = job.count;
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / warp;
  const std::int64_t begin = block * block_elements, end = min(count, begin + block_elements);
  if (begin >= count) return;
  const int lane = threadIdx.x % warp;
  double sum = 0;
  const auto add = [&](float x) {
    const double wide = x;
    sum = __fma_rn(wide, wide, sum);
  };
  constexpr int rows = 32;
  std::int64_t at = begin + lane;
  if constexpr (sizeof(T) == 2) {
    // Lane l has read the words of elements 2 l and 2 l + 1 of 64, and adds elements l and l + 32.
    constexpr int pairs = 32;
    const auto half = [&](unsigned word) { return __uint_as_float(lane % 2 == 0 ? word << 16 : word & 0xffff0000u); };
    if (reinterpret_cast<std::uintptr_t>(grad) % sizeof(unsigned) == 0) {
      for (; at - lane + 2 * pairs * warp <= end; at += 2 * pairs * warp) {  // all lanes or none
        const auto* words = reinterpret_cast<const unsigned*>(grad + at - lane) + lane;
        unsigned word[pairs];
#pragma unroll
        for (int p = 0; p < pairs; ++p) word[p] = words[p * warp];
#pragma unroll
        for (int p = 0; p < pairs; ++p) {
          add(half(__shfl_sync(0xffffffffu, word[p], lane / 2)));
          add(half(__shfl_sync(0xffffffffu, word[p], warp / 2 + lane / 2)));
        }
      }
    }
  }
  for (; at + (rows - 1) * warp < end; at += rows * warp) {
    float x[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) x[r] = to_float(grad[at + r * warp]);
#pragma unroll
    for (int r = 0; r < rows; ++r) add(x[r]);
  }
  for (; at < end; at += warp) add(to_float(grad[at]));
#pragma unroll
  for (int half = warp / 2; half > 0; half /= 2) sum += __shfl_down_sync(0xffffffffu, sum, half);
  sum = __shfl_sync(0xffffffffu, sum, 0);
  unsigned bad = 0;
  if (!isfinite(sum)) {
    for (at = begin + lane; at < end; at += warp) bad += isfinite(to_float(grad[at])) ? 0 : 1;
    bad = __reduce_add_sync(0xffffffffu, bad);
  }
  if (lane == 0) job.parts[block] = {sum, bad};
}

// The blocks: block b to lane b mod 1024, each lane in order, lanes by halves.
constexpr int block_lanes = StatsOrder::block_lanes;

__global__ void __launch_bounds__(block_lanes) sum_blocks_kernel(const __grid_constant__ StatsJobs jobs) {
  const auto& job = jobs.at[blockIdx.x];
  const GradStats* const parts = job.parts;
  const std::int64_t blocks = (job.count + block_elements - 1) / block_elements;
  __shared__ double sums[block_lanes];
  __shared__ unsigned long long bads[block_lanes];
  const int lane = threadIdx.x;
  double sum = 0;
  unsigned long long bad = 0;
#pragma unroll 8
  for (std::int64_t b = lane; b < blocks; b += block_lanes) {
    sum += parts[b].sum_of_squares;
    bad += parts[b].non_finite;
  }
  sums[lane] = sum;
  bads[lane] = bad;
  for (int half = block_lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane >= half) continue;
    sums[lane] += sums[lane + half];
    bads[lane] += bads[lane + half];
  }
  if (lane == 0) *job.out = {sums[0], bads[0]};
}

}  // namespace

void CudaEngineOps::grad_stats(Stream& stream, std::span<const StatsOf> gradients, Tensor scratch) {
  check_grad_stats(gradients, scratch);
  const cudaStream_t on = cuda_stream(stream);
  auto* parts = static_cast<GradStats*>(scratch.data());
  while (!gradients.empty()) {
    const auto some = gradients.first(std::min<std::size_t>(gradients.size(), most_gradients));
    StatsJobs jobs;
    std::int64_t most_blocks = 0;
    for (std::size_t i = 0; i < some.size(); ++i) {
      const auto& [out, grad] = some[i];
      jobs.at[i] = {out, grad.data(), grad.size(), parts};
      parts += stats_blocks(grad.size());
      most_blocks = std::max(most_blocks, stats_blocks(grad.size()));
    }
    const auto count = static_cast<unsigned>(some.size());
    if (most_blocks > 0)
      with_type(some.front().grad.dtype(), [&]<class T> {
        block_stats_kernel<T><<<dim3(blocks_for(most_blocks, warps), count), threads, 0, on>>>(jobs);
      });
    sum_blocks_kernel<<<count, block_lanes, 0, on>>>(jobs);
    SO_CUDA_LAUNCHED("grad_stats");
    gradients = gradients.subspan(some.size());
  }
}

}  // namespace so
