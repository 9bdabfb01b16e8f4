// Which experts a token goes to, and the gradient of that choice's weights. A warp does a token, lane l the experts l,
// l + 32, ... of it. Pairs are sorted by counting: how many of each expert a piece of tokens has, where that piece's
// rows of the expert begin, and which of them a pair gets, from a bit for each token of the piece.
#include "device/cuda/kernel.h"
#include "ops/cuda/column_sums.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/sigmoid.h"
#include "ops/expert_checks.h"

namespace so {
namespace {

using namespace kernel;

constexpr unsigned all_lanes = 0xffffffffu;
constexpr int piece_tokens = 64, mask_words = piece_tokens / 32;

// f.operator()<V>(): V times 32 lanes hold the experts.
template <class F>
void with_values(std::int64_t experts, F&& f) {
  static_assert(kMaxExperts == 32 * warp);
  if (experts <= warp)
    f.template operator()<1>();
  else if (experts <= 2 * warp)
    f.template operator()<2>();
  else if (experts <= 4 * warp)
    f.template operator()<4>();
  else if (experts <= 8 * warp)
    f.template operator()<8>();
  else
    f.template operator()<32>();
}

// Beyond the last expert: -infinity, which has no share.
template <int V>
__device__ inline void load_logits(float (&x)[V], const float* row, int experts) {
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int e = v * warp + threadIdx.x % warp;
    x[v] = e < experts ? row[e] : -INFINITY;
  }
}

// x becomes its softmax: NaN all over if any logit is, or the largest is infinite.
template <int V>
__device__ inline void softmax(float (&x)[V]) {
  float largest = x[0];
#pragma unroll
  for (int v = 1; v < V; ++v) largest = fmaxf(largest, x[v]);
#pragma unroll
  for (int lane = warp / 2; lane > 0; lane /= 2) largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, lane));
  float total = 0;
#pragma unroll
  for (int v = 0; v < V; ++v) total += x[v] = expf(x[v] - largest);
  total = warp_sum(total);
#pragma unroll
  for (int v = 0; v < V; ++v) x[v] /= total;
}

// An unsigned number in the order of logits: NaN below all others, above 0. The zeros are equal.
__device__ inline unsigned key_of(float x) {
  if (isnan(x)) return 1;
  const unsigned bits = __float_as_uint(x + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ inline float logit_of(unsigned key) {
  if (key == 1) return NAN;
  return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

// RouterRule, as kernels take it.
struct Rule {
  bool by_sigmoid, renormalized;
  float scale;
  const float* selection_bias;  // or null
};
Rule kernel_rule(const RouterRule& rule) {
  return {rule.scores == RouterRule::Scores::sigmoid, rule.renormalized, rule.scale,
          rule.selection_bias ? rule.selection_bias.as<float>() : nullptr};
}

// The weights that sigmoids are renormalised by never add up to 0, as in transformers.
constexpr float least_total = 1e-20f;

constexpr int choose_threads = 512, choose_warps = choose_threads / warp;

// A block does a piece of tokens: their experts, the weights by pair, and how often each expert was chosen.
template <int V>
__global__ void __launch_bounds__(choose_threads)
    choose_kernel(int* experts, float* weights, int* counts, const float* logits, std::int64_t tokens, int expert_count,
                  int choices, Rule rule) {
  extern __shared__ int piece_counts[];
  for (int e = threadIdx.x; e < expert_count; e += choose_threads) piece_counts[e] = 0;
  __syncthreads();
  const int lane = threadIdx.x % warp;
  for (int t = threadIdx.x / warp; t < piece_tokens; t += choose_warps) {
    const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * piece_tokens + t;
    if (n >= tokens) break;
    float x[V];
    load_logits(x, logits + n * expert_count, expert_count);
    unsigned key[V];
    bool poisoned = false;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int e = v * warp + lane;
      float chooses = x[v];
      if (rule.by_sigmoid) {
        float complement;
        sigmoid<float>(x[v], chooses, complement);
        if (rule.selection_bias && e < expert_count) chooses += rule.selection_bias[e];
      }
      key[v] = e < expert_count ? key_of(chooses) : 0;
      poisoned |= isnan(x[v]);
    }
    int chosen = 0;
    float logit = 0, largest = 0;
    for (int j = 0; j < choices; ++j) {
      unsigned best = 0;
      int best_at = 0;
#pragma unroll
      for (int v = 0; v < V; ++v)
        if (key[v] > best) best = key[v], best_at = v;
      const unsigned top = __reduce_max_sync(all_lanes, best);
      const unsigned expert = __reduce_min_sync(all_lanes, best == top ? best_at * warp + lane : all_lanes);
#pragma unroll
      for (int v = 0; v < V; ++v)
        if (v * warp + lane == expert) key[v] = 0;
      if (j == 0) largest = logit_of(top);
      if (j == lane) chosen = expert, logit = logit_of(top);
    }
    float share = lane < choices ? expf(logit - largest) : 0.0f, total = 0;
    if (rule.by_sigmoid) {
      float complement;
      if (lane < choices) sigmoid<float>(logits[n * expert_count + chosen], share, complement);
      total = __any_sync(all_lanes, poisoned) ? NAN : rule.renormalized ? warp_sum(share) + least_total : 1.0f;
    } else if (rule.renormalized) {  // a NaN shows, whether it was chosen or not
      total = __any_sync(all_lanes, poisoned) ? NAN : warp_sum(share);
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v) total += expf(x[v] - largest);
      total = warp_sum(total);
    }
    if (lane < choices) {
      experts[n * choices + lane] = chosen;
      weights[n * choices + lane] = rule.scale * (share / total);
      atomicAdd(&piece_counts[chosen], 1);  // integers: in any order the same
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < expert_count; e += choose_threads)
    counts[static_cast<std::int64_t>(blockIdx.x) * expert_count + e] = piece_counts[e];
}

// counts[piece, e] becomes the sum of those of the pieces before, totals[e] of all. A block does 32 experts.
__global__ void __launch_bounds__(warp* warp)
    sum_counts_kernel(int* counts, int* totals, int pieces, int expert_count) {
  __shared__ int sums[warp][warp + 1];
  const int e = blockIdx.x * warp + threadIdx.x, span = (pieces + warp - 1) / warp;
  const int begin = min(pieces, static_cast<int>(threadIdx.y) * span), end = min(pieces, begin + span);
  int sum = 0;
  if (e < expert_count) {
#pragma unroll 8
    for (int p = begin; p < end; ++p) sum += counts[static_cast<std::int64_t>(p) * expert_count + e];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (e >= expert_count) return;
  int before = 0;
  for (int y = 0; y < threadIdx.y; ++y) before += sums[y][threadIdx.x];
  if (threadIdx.y == warp - 1) totals[e] = before + sum;
  for (int p = begin; p < end; ++p) {
    int& count = counts[static_cast<std::int64_t>(p) * expert_count + e];
    const int here = count;
    count = before;
    before += here;
  }
}

constexpr int place_threads = 512;

// The sums of totals before each expert to starts [expert_count + 1]. All threads; up to 2 experts a thread.
__device__ inline void sum_totals(int* starts, const int* totals, int expert_count) {
  static_assert(kMaxExperts == 2 * place_threads);
  __shared__ int warp_sums[place_threads / warp];
  const int lane = threadIdx.x % warp, wid = threadIdx.x / warp, e = 2 * threadIdx.x;
  const int first = e < expert_count ? totals[e] : 0, second = e + 1 < expert_count ? totals[e + 1] : 0;
  int sum = first + second;
#pragma unroll
  for (int step = 1; step < warp; step *= 2) {
    const int other = __shfl_up_sync(all_lanes, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == warp - 1) warp_sums[wid] = sum;
  __syncthreads();
  for (int w = 0; w < wid; ++w) sum += warp_sums[w];
  if (e < expert_count) starts[e + 1] = sum - second;
  if (e + 1 < expert_count) starts[e + 2] = sum;
  if (threadIdx.x == 0) starts[0] = 0;
  __syncthreads();
}

// A block gives the pairs of a piece their rows: `counts` are those of earlier pieces.
__global__ void __launch_bounds__(place_threads)
    place_kernel(int* rows, int* pairs, float* weights, int* offsets, const int* experts, const float* pair_weights,
                 const int* counts, const int* totals, std::int64_t tokens, int expert_count, int choices) {
  extern __shared__ int shared[];
  int* starts = shared;                                                  // [expert_count + 1]
  auto* masks = reinterpret_cast<unsigned*>(shared + expert_count + 1);  // [expert_count, mask_words]
  for (int i = threadIdx.x; i < expert_count * mask_words; i += place_threads) masks[i] = 0;
  sum_totals(starts, totals, expert_count);
  if (blockIdx.x == 0)
    for (int e = threadIdx.x; e <= expert_count; e += place_threads) offsets[e] = starts[e];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * piece_tokens * choices;
  const int here = static_cast<int>(min(tokens * choices - first, static_cast<std::int64_t>(piece_tokens) * choices));
  for (int i = threadIdx.x; i < here; i += place_threads) {
    const int token = i / choices;
    atomicOr(&masks[experts[first + i] * mask_words + token / 32], 1u << token % 32);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < here; i += place_threads) {
    const int token = i / choices, expert = experts[first + i];
    int row = starts[expert] + counts[static_cast<std::int64_t>(blockIdx.x) * expert_count + expert];
#pragma unroll
    for (int w = 0; w < mask_words; ++w) {  // tokens of the piece before this one
      const unsigned mask = masks[expert * mask_words + w];
      row += __popc(w < token / 32 ? mask : w == token / 32 ? mask & ((1u << token % 32) - 1) : 0);
    }
    rows[first + i] = row;
    pairs[row] = static_cast<int>(first + i);
    weights[row] = pair_weights[first + i];
  }
}

constexpr int threads = 256, warps = threads / warp;

// With p = softmax(x) and w = c q the choices' weights, c the rule's scale, q p of the chosen or softmax over these, dw
// their gradients:
//   dx = w (dw - q.dw) of the chosen if q is normalised, else p (c dw - w.dw) of all, dw being 0 where not chosen;
//   and of the balance: scale p (counts - p.counts).
// With sigmoids p, of which only those that were chosen count: dx = w (1 - p) dw, and if they are renormalised
// w (1 - p) (dw - q.dw).
template <class T, int V>
__global__ void __launch_bounds__(threads)
    route_grad_kernel(T* dlogits, const float* dweights, const int* experts, const int* rows, const float* weights,
                      const float* logits, const float* counts, std::int64_t tokens, int expert_count, int choices,
                      Rule rule, float balance_scale) {
  extern __shared__ float shared_rows[];
  const int lane = threadIdx.x % warp;
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / warp;
  if (n >= tokens) return;
  // The choices' values for each expert: all of dx, or c dw.
  float* of_choice = shared_rows + threadIdx.x / warp * expert_count;
  for (int e = lane; e < expert_count; e += warp) of_choice[e] = 0;
  int chosen = 0;
  float w = 0, dw = 0;
  if (lane < choices) {
    const int row = rows[n * choices + lane];
    chosen = experts[n * choices + lane];
    w = weights[row];
    dw = dweights[row];
  }
  float mean = warp_sum(w * dw);
  if (rule.renormalized) mean /= rule.scale;
  __syncwarp();
  if (lane < choices) {
    float value = rule.renormalized ? w * (dw - mean) : rule.scale * dw;
    if (rule.by_sigmoid) {
      float score, complement;
      sigmoid<float>(logits[n * expert_count + chosen], score, complement);
      value = w * complement * (rule.renormalized ? dw - mean : dw);
    }
    of_choice[chosen] = value;
  }
  __syncwarp();
  const bool of_all = !rule.by_sigmoid && !rule.renormalized;
  float p[V] = {};
  if (of_all || counts) {
    load_logits(p, logits + n * expert_count, expert_count);
    softmax(p);
  }
  float level = 0;
  if (counts) {
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (const int e = v * warp + lane; e < expert_count) level += p[v] * counts[e];
    level = warp_sum(level);
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int e = v * warp + lane;
    if (e >= expert_count) break;
    float dx = of_all ? p[v] * (of_choice[e] - mean) : of_choice[e];
    if (counts) dx += balance_scale * (p[v] * (counts[e] - level));
    dlogits[n * expert_count + e] = from_float<T>(dx);
  }
}

__global__ void __launch_bounds__(threads)
    counts_kernel(float* counts, const int* offsets, int expert_count, bool add) {
  const int e = blockIdx.x * threads + threadIdx.x;
  if (e < expert_count) counts[e] = (add ? counts[e] : 0.0f) + static_cast<float>(offsets[e + 1] - offsets[e]);
}

// partial[piece, e] = the sum of the piece's softmaxes.
template <int V>
__global__ void __launch_bounds__(threads)
    shares_kernel(float* partial, const float* logits, std::int64_t tokens, int expert_count) {
  extern __shared__ float shared_rows[];
  const int lane = threadIdx.x % warp;
  float sums[V] = {};
  for (int t = threadIdx.x / warp; t < piece_tokens; t += warps) {
    const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * piece_tokens + t;
    if (n >= tokens) break;
    float p[V];
    load_logits(p, logits + n * expert_count, expert_count);
    softmax(p);
#pragma unroll
    for (int v = 0; v < V; ++v) sums[v] += p[v];
  }
#pragma unroll
  for (int v = 0; v < V; ++v)
    if (const int e = v * warp + lane; e < expert_count) shared_rows[threadIdx.x / warp * expert_count + e] = sums[v];
  __syncthreads();
  for (int e = threadIdx.x; e < expert_count; e += threads) {
    float sum = 0;
    for (int w = 0; w < warps; ++w) sum += shared_rows[w * expert_count + e];
    partial[static_cast<std::int64_t>(blockIdx.x) * expert_count + e] = sum;
  }
}

// Every warp takes the sum over experts anew: it is short.
__global__ void __launch_bounds__(threads)
    router_loss_kernel(float* losses, const int* targets, const float* counts, const float* shares, std::int64_t tokens,
                       int expert_count, float scale) {
  double sum = 0;
  for (int e = threadIdx.x % warp; e < expert_count; e += warp)
    sum += static_cast<double>(counts[e]) * static_cast<double>(shares[e]);
  const auto term = static_cast<float>(static_cast<double>(scale) * warp_sum(sum));
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (n < tokens && targets[n] >= 0) losses[n] += term;
}

}  // namespace

void CudaOps::route(Stream& stream, const Routing& out, Tensor logits, const RouterRule& rule) {
  const char* op = "route";
  const RoutingSize size = expect_route(op, out, logits, rule);
  const cudaStream_t on = enter(stream);
  auto* offsets = out.offsets.as<std::int32_t>();
  if (size.tokens == 0) {
    SO_CUDA(cudaMemsetAsync(offsets, 0, out.offsets.bytes(), on));
    return;
  }
  const auto expert_count = static_cast<int>(size.experts), choices = static_cast<int>(size.choices);
  const unsigned pieces = blocks_for(size.tokens, piece_tokens);
  const auto rows = static_cast<std::size_t>(size.rows), table = static_cast<std::size_t>(pieces * size.experts);
  static_assert(sizeof(int) == sizeof(float));
  auto* weights = scratch<float>(rows + table + static_cast<std::size_t>(size.experts));  // by pair
  auto *counts = reinterpret_cast<int*>(weights + rows), *totals = counts + table;
  auto* experts = out.experts.as<std::int32_t>();
  with_values(size.experts, [&]<int V> {
    choose_kernel<V><<<pieces, choose_threads, expert_count * sizeof(int), on>>>(
        experts, weights, counts, logits.as<float>(), size.tokens, expert_count, choices, kernel_rule(rule));
  });
  sum_counts_kernel<<<blocks_for(expert_count, warp), dim3(warp, warp), 0, on>>>(
      counts, totals, static_cast<int>(pieces), expert_count);
  const std::size_t shared = static_cast<std::size_t>(size.experts * (1 + mask_words) + 1) * sizeof(int);
  place_kernel<<<pieces, place_threads, shared, on>>>(out.rows.as<std::int32_t>(), out.pairs.as<std::int32_t>(),
                                                      out.weights.as<float>(), offsets, experts, weights, counts,
                                                      totals, size.tokens, expert_count, choices);
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::route_grad(Stream& stream, Tensor dlogits, Tensor dweights, const Routing& routing, Tensor logits,
                         const RouterRule& rule, Tensor counts, float balance_scale) {
  const char* op = "route_grad";
  const RoutingSize size = expect_route_grad(op, dlogits, dweights, routing, logits, rule, counts);
  const cudaStream_t on = enter(stream);
  if (size.tokens == 0) return;
  const std::size_t shared = static_cast<std::size_t>(warps * size.experts) * sizeof(float);
  with_type(dlogits.dtype(), [&]<class T> {
    with_values(size.experts, [&]<int V> {
      route_grad_kernel<T, V><<<blocks_for(size.tokens, warps), threads, shared, on>>>(
          static_cast<T*>(dlogits.data()), dweights.as<float>(), routing.experts.as<std::int32_t>(),
          routing.rows.as<std::int32_t>(), routing.weights.as<float>(), logits.as<float>(),
          counts ? counts.as<float>() : nullptr, size.tokens, static_cast<int>(size.experts),
          static_cast<int>(size.choices), kernel_rule(rule), balance_scale);
    });
  });
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::router_load(Stream& stream, Tensor counts, Tensor shares, const Routing& routing, Tensor logits,
                          Accumulate mode) {
  const char* op = "router_load";
  const RoutingSize size = expect_router_load(op, counts, shares, routing, logits);
  const cudaStream_t on = enter(stream);
  const auto expert_count = static_cast<int>(size.experts);
  counts_kernel<<<blocks_for(size.experts, threads), threads, 0, on>>>(
      counts.as<float>(), routing.offsets.as<std::int32_t>(), expert_count, mode == Accumulate::add);
  const std::int64_t pieces = (size.tokens + piece_tokens - 1) / piece_tokens;
  auto* partial = scratch<float>(static_cast<std::size_t>(pieces * size.experts));
  if (pieces > 0) {
    const std::size_t shared = static_cast<std::size_t>(warps * size.experts) * sizeof(float);
    with_values(size.experts, [&]<int V> {
      shares_kernel<V>
          <<<blocks_for(pieces, 1), threads, shared, on>>>(partial, logits.as<float>(), size.tokens, expert_count);
    });
  }
  SO_CUDA_LAUNCHED(op);
  finish_column_sums(on, shares, partial, pieces, size.experts, mode);
}

void CudaOps::add_router_loss(Stream& stream, Tensor losses, Tensor targets, Tensor counts, Tensor shares,
                              float scale) {
  const char* op = "add_router_loss";
  expect_router_loss(op, losses, targets, counts, shares);
  const cudaStream_t on = enter(stream);
  if (losses.size() == 0) return;
  router_loss_kernel<<<blocks_for(losses.size(), threads), threads, 0, on>>>(
      losses.as<float>(), targets.as<std::int32_t>(), counts.as<float>(), shares.as<float>(), losses.size(),
      static_cast<int>(counts.size()), scale);
  SO_CUDA_LAUNCHED(op);
}

}  // namespace so
