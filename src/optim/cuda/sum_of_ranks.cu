// The sum over ranks, in their order.
#include <algorithm>

#include "device/cuda/cuda_device.h"
#include "device/cuda/kernel.h"
#include "optim/cuda/cuda_engine_ops.h"
#include "optim/engine_ops_checks.h"

namespace so {
namespace {

using namespace kernel;

constexpr int sum_threads = 256;
constexpr int sum_pack = 8;    // elements of an access, where all are aligned
constexpr int most_sums = 64;  // of a launch: 2 KB of arguments

template <class T, class Out>
struct SumJobs {
  struct {
    Out* out;
    const T *own, *others;  // `others` has ranks - 1 rows of `count` elements
    std::int64_t count;
  } at[most_sums];
};

template <class T, class Out, int N, bool ADD>
__global__ void __launch_bounds__(sum_threads)
    sum_of_ranks_kernel(const __grid_constant__ SumJobs<T, Out> jobs, int rank, int ranks) {
  const auto& job = jobs.at[blockIdx.y];
  const std::int64_t count = job.count;
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * sum_threads + threadIdx.x) * N;
  if (i >= count) return;
  const auto values = [&](int r) { return r == rank ? job.own + i : job.others + (r < rank ? r : r - 1) * count + i; };
  float sum[N], next[N];
  load<N>(sum, values(0));
  for (int r = 1; r < ranks; ++r) {
    load<N>(next, values(r));
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] += next[k];
  }
  if constexpr (ADD) {
    load<N>(next, job.out + i);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] = next[k] + sum[k];
  }
  store<N>(job.out + i, sum);
}

template <class T, class Out, int N>
void launch_sums(std::span<const RankSum> sums, Accumulate mode, int rank, cudaStream_t on) {
  SumJobs<T, Out> jobs;
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto& [out, own, others] = sums[i];
    jobs.at[i] = {static_cast<Out*>(out.data()), static_cast<const T*>(own.data()),
                  static_cast<const T*>(others.data()), own.size()};
    longest = std::max(longest, own.size());
  }
  if (longest == 0) return;
  const auto launch = [&](auto kernel) {
    const dim3 grid(blocks_for(longest, sum_threads * N), static_cast<unsigned>(sums.size()));
    kernel<<<grid, sum_threads, 0, on>>>(jobs, rank, static_cast<int>(sums.front().others.dim(0)) + 1);
  };
  if (mode == Accumulate::add)
    launch(sum_of_ranks_kernel<T, Out, N, true>);
  else
    launch(sum_of_ranks_kernel<T, Out, N, false>);
}

template <class T, class Out>
void load_sums() {
  load_kernel(sum_of_ranks_kernel<T, Out, sum_pack, true>);
  load_kernel(sum_of_ranks_kernel<T, Out, sum_pack, false>);
  load_kernel(sum_of_ranks_kernel<T, Out, 1, true>);
  load_kernel(sum_of_ranks_kernel<T, Out, 1, false>);
}

}  // namespace

void CudaEngineOps::load_sum_of_ranks() {
  load_sums<float, float>();
  load_sums<__nv_bfloat16, float>();
  load_sums<__nv_bfloat16, __nv_bfloat16>();
}

void CudaEngineOps::sum_of_ranks(Stream& stream, std::span<const RankSum> sums, Accumulate mode, int rank) {
  check_sum_of_ranks(sums, rank);
  const cudaStream_t on = cuda_stream(stream);
  for (; !sums.empty(); sums = sums.subspan(std::min<std::size_t>(sums.size(), most_sums))) {
    const auto some = sums.first(std::min<std::size_t>(sums.size(), most_sums));
    const auto launch = [&]<class T, class Out>() {
      const bool aligned = std::all_of(some.begin(), some.end(), [](const RankSum& sum) {
        return rows_aligned<T, sum_pack>(sum.own.size(), static_cast<const T*>(sum.own.data()),
                                         static_cast<const T*>(sum.others.data())) &&
               rows_aligned<Out, sum_pack>(sum.own.size(), static_cast<const Out*>(sum.out.data()));
      });
      if (aligned)
        launch_sums<T, Out, sum_pack>(some, mode, rank, on);
      else
        launch_sums<T, Out, 1>(some, mode, rank, on);
    };
    with_type(some.front().own.dtype(), [&]<class T>() {
      if (some.front().out.dtype() == DType::f32)
        launch.template operator()<T, float>();
      else
        launch.template operator()<T, T>();
    });
    SO_CUDA_LAUNCHED("sum_of_ranks");
  }
}

}  // namespace so
