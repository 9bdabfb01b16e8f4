// Output projection and cross-entropy over chunks of rows: logits, losses and gradients of one chunk live in the
// workspace, in T, and are gone when the next begins. Where many rows have no target, those that have one are gathered.
//
// A row of logits is read twice, once for its log-sum-exp and once to write the gradient over it; between the two it
// stays in the L2 cache (132 blocks x 300 KB at a vocabulary of 151,936), so the device's memory sees one read and one
// write. Logits are bf16 when T is, as in PyTorch; sums are fp32 and losses are exact to that rounding. Rows of logits
// lie OpsMemory::logits_stride() apart, so that a vocabulary of any size has aligned rows; what lies between the end of
// the vocabulary and the next row is never read as a logit.
#include <algorithm>

#include "device/cuda/kernel.h"
#include "device/cuda/rows.h"
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/gemm.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 1024;

// The sum of exponentials that a thread or block has seen so far, relative to the largest value.
struct Sum {
  float largest, sum;
};
template <class T>
__device__ inline Sum join(Sum a, Sum b) {
  const float largest = fmaxf(a.largest, b.largest);
  // Both empty: no difference of infinities.
  if (largest == -INFINITY) return {largest, 0};
  return {largest, a.sum * exponential<T>(a.largest - largest) + b.sum * exponential<T>(b.largest - largest)};
}
template <class T>
__device__ inline Sum warp_join(Sum x) {
#pragma unroll
  for (int lane = warp / 2; lane > 0; lane /= 2)
    x = join<T>(x, {__shfl_xor_sync(0xffffffffu, x.largest, lane), __shfl_xor_sync(0xffffffffu, x.sum, lane)});
  return x;
}

// cap tanh(x / cap).
__device__ inline float capped(float x, float cap) { return cap * tanhf(x / cap); }

// A block a row of logits, which belongs to row `rows[...]` of losses and targets, or without `rows` to its own: the
// loss, and with BACKWARD the row becomes the gradient of grad_scale * loss. With SMOOTH, `smoothing` of the target's
// weight is spread over the vocabulary; with CAP, logits are soft-capped at `cap` when they are read.
template <class T, int N, bool BACKWARD, bool SMOOTH, bool CAP>
__global__ void __launch_bounds__(threads)
    loss_kernel(float* losses, T* logits, const std::int32_t* targets, const std::int32_t* rows, std::int64_t stride,
                std::int64_t vocabulary, float grad_scale, float smoothing, float cap) {
  __shared__ Sum shared[threads / warp];
  __shared__ float logit_sums[threads / warp];
  __shared__ float target_logit;
  T* row = logits + blockIdx.x * stride;
  const std::int64_t n = rows ? rows[blockIdx.x] : blockIdx.x;
  const std::int32_t target = targets[n];
  if (target >= vocabulary) __trap();
  if (target < 0) {
    if (threadIdx.x == 0) losses[n] = 0;
    if constexpr (BACKWARD) {
      const float zero[N] = {};
      for (std::int64_t i = static_cast<std::int64_t>(threadIdx.x) * N; i < vocabulary; i += threads * N)
        store<N>(row + i, zero);
    }
    return;
  }
  Sum mine{-INFINITY, 0};
  float logit_sum = 0;
#pragma unroll 4
  for (std::int64_t i = static_cast<std::int64_t>(threadIdx.x) * N; i < vocabulary; i += threads * N) {
    float x[N], largest = -INFINITY, sum = 0;
    load<N>(x, row + i);
    if constexpr (CAP) {
#pragma unroll
      for (int j = 0; j < N; ++j) x[j] = capped(x[j], cap);
    }
    if constexpr (SMOOTH) {
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (i + j < vocabulary) logit_sum += x[j];
    }
    if (i + N > vocabulary) {
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (i + j >= vocabulary) x[j] = -INFINITY;
    }
#pragma unroll
    for (int j = 0; j < N; ++j) largest = fmaxf(largest, x[j]);
    largest = fmaxf(largest, mine.largest);
#pragma unroll
    for (int j = 0; j < N; ++j) sum += exponential<T>(x[j] - largest);
    mine = {largest, largest == -INFINITY ? 0.0f : mine.sum * exponential<T>(mine.largest - largest) + sum};
    // A NaN is no largest; it must still reach the loss.
#pragma unroll
    for (int j = 0; j < N; ++j)
      if (isnan(x[j])) mine.sum = x[j];
  }
  if (threadIdx.x == 0) target_logit = CAP ? capped(to_float(row[target]), cap) : to_float(row[target]);
  mine = warp_join<T>(mine);
  if (threadIdx.x % warp == 0) shared[threadIdx.x / warp] = mine;
  if constexpr (SMOOTH) {
    logit_sum = warp_sum(logit_sum);
    if (threadIdx.x % warp == 0) logit_sums[threadIdx.x / warp] = logit_sum;
  }
  __syncthreads();
  const Sum all = warp_join<T>(shared[threadIdx.x % (threads / warp)]);
  if constexpr (SMOOTH) logit_sum = warp_sum(logit_sums[threadIdx.x % (threads / warp)]);
  if (threadIdx.x == 0) {
    float margin = target_logit - all.largest;
    if constexpr (SMOOTH)
      margin = (1 - smoothing) * margin + smoothing * (logit_sum / static_cast<float>(vocabulary) - all.largest);
    losses[n] = logf(all.sum) - margin;
  }
  if constexpr (BACKWARD) {
    const float scale = grad_scale / all.sum;
    const float at_target = SMOOTH ? grad_scale * (1 - smoothing) : grad_scale;
    const float uniform = SMOOTH ? grad_scale * smoothing / static_cast<float>(vocabulary) : 0.0f;
#pragma unroll 4
    for (std::int64_t i = static_cast<std::int64_t>(threadIdx.x) * N; i < vocabulary; i += threads * N) {
      float x[N];
      load<N>(x, row + i);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float t = CAP ? tanhf(x[j] / cap) : 0.0f, slope = (1 - t) * (1 + t);
        x[j] = exponential<T>((CAP ? cap * t : x[j]) - all.largest) * scale;
        if constexpr (SMOOTH) x[j] -= uniform;
        if (i + j == target) x[j] -= at_target;
        if constexpr (CAP) x[j] *= slope;
      }
      store<N>(row + i, x);
    }
  }
}

template <class T, int N>
void launch_loss(cudaStream_t on, float* losses, Tensor logits, std::int64_t vocabulary, const std::int32_t* targets,
                 const std::int32_t* rows, bool backward, float grad_scale, float smoothing, float cap) {
  const auto pick = [&]<bool SMOOTH, bool CAP> {
    return backward ? loss_kernel<T, N, true, SMOOTH, CAP> : loss_kernel<T, N, false, SMOOTH, CAP>;
  };
  const auto smooth = cap > 0 ? pick.template operator()<true, true>() : pick.template operator()<true, false>();
  const auto plain = cap > 0 ? pick.template operator()<false, true>() : pick.template operator()<false, false>();
  const auto kernel = smoothing > 0 ? smooth : plain;
  kernel<<<blocks_for(logits.dim(0), 1), threads, 0, on>>>(losses, static_cast<T*>(logits.data()), targets, rows,
                                                           logits.dim(1), vocabulary, grad_scale, smoothing, cap);
  SO_CUDA_LAUNCHED("linear_cross_entropy");
}

constexpr int cap_threads = 256;

__global__ void __launch_bounds__(cap_threads) soft_cap_kernel(float* logits, float cap, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * cap_threads + threadIdx.x;
  if (i < count) logits[i] = capped(logits[i], cap);
}

// Below this share of rows with a target it pays to gather them.
constexpr double gather_share = 0.95;

}  // namespace

void CudaOps::soft_cap(Stream& stream, Tensor logits, float cap) {
  expect_soft_cap(logits, cap);
  const cudaStream_t on = enter(stream);
  const std::int64_t count = logits.size();
  if (count == 0) return;
  soft_cap_kernel<<<blocks_for(count, cap_threads), cap_threads, 0, on>>>(logits.as<float>(), cap, count);
  SO_CUDA_LAUNCHED("soft_cap");
}

void CudaOps::linear_cross_entropy(Stream& stream, const LinearCrossEntropy& a) {
  const DType type = a.hidden.dtype();
  expect_linear_cross_entropy(a, memory());
  const cudaStream_t on = enter(stream);
  const std::int64_t tokens = a.hidden.dim(0), hidden = a.hidden.dim(1), vocabulary = a.weight.dim(0);
  const bool backward = static_cast<bool>(a.dhidden);
  const bool gather = a.rows && static_cast<double>(a.rows.size()) < gather_share * static_cast<double>(tokens);
  const std::int64_t count = gather ? a.rows.size() : tokens;  // rows that are computed
  const Tensor x = gather ? a.gathered.rows(0, count) : a.hidden;
  // The gradient of gathered rows takes their place, once nothing reads them any more.
  const Tensor dx = gather ? x : a.dhidden;
  Accumulate mode = a.dweight_mode;
  if (count == 0 && a.dweight && mode == Accumulate::overwrite)
    SO_CUDA(cudaMemsetAsync(a.dweight.data(), 0, a.dweight.bytes(), on));
  if (gather) {
    SO_CUDA(cudaMemsetAsync(a.losses.data(), 0, a.losses.bytes(), on));
    take_rows(on, x, a.hidden, a.rows);
  }
  for (std::int64_t begin = 0; begin < count; begin += a.workspace.dim(0)) {
    const std::int64_t rows = std::min(a.workspace.dim(0), count - begin);
    const Tensor logits = a.workspace.rows(0, rows), chunk = x.rows(begin, rows);
    const std::int64_t stride = logits.dim(1);
    gemm_->run(on, {.out = logits,
                    .a = chunk,
                    .b = a.weight,
                    .transpose_b = true,
                    .rows = rows,
                    .columns = vocabulary,
                    .inner = hidden,
                    .out_stride = stride});
    const std::int32_t* indices = gather ? a.rows.as<std::int32_t>() + begin : nullptr;
    const std::int64_t first = gather ? 0 : begin;
    with_type(type, [&]<class T> {
      constexpr int N = pack_size<T>;
      const bool packs = rows_aligned<T, N>(stride, static_cast<const T*>(logits.data()));
      const auto launch = packs ? launch_loss<T, N> : launch_loss<T, 1>;
      launch(on, a.losses.as<float>() + first, logits, vocabulary, a.targets.as<std::int32_t>() + first, indices,
             backward, a.grad_scale, a.label_smoothing, a.soft_cap);
    });
    if (!backward) continue;
    if (a.dweight)
      gemm_->run(on, {.out = a.dweight,
                      .a = logits,
                      .b = chunk,
                      .transpose_a = true,
                      .rows = vocabulary,
                      .columns = hidden,
                      .inner = rows,
                      .mode = mode,
                      .a_stride = stride});
    gemm_->run(on, {.out = dx.rows(begin, rows),
                    .a = logits,
                    .b = a.weight,
                    .rows = rows,
                    .columns = hidden,
                    .inner = vocabulary,
                    .a_stride = stride});
    mode = Accumulate::add;
  }
  if (!gather || !backward) return;
  SO_CUDA(cudaMemsetAsync(a.dhidden.data(), 0, a.dhidden.bytes(), on));
  scatter_rows(on, a.dhidden, x, a.rows);
}

}  // namespace so
