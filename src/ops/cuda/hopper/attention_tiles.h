// Code that the kernels of attention on Hopper's matrix units share. Included by .cu files only.
#pragma once

#include "ops/cuda/attention_document.h"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/hopper/wgmma.h"

namespace so::hopper {

inline constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

// 2^x on the special function unit.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <int D>
__device__ inline bf16_t* rows_of(const HeadsView& view, std::int64_t row, int head) {
  return static_cast<bf16_t*>(view.at) + row * view.width + static_cast<std::int64_t>(head) * D;
}

// Calls f(sees), where sees(i) tells whether a query sees the key that is `i` keys before its last one. `corner` is
// that distance for the first query and first key of a tile. Most tiles are cut by neither end of the window, few by
// both.
template <class F>
__device__ inline void with_window(int corner, int window, F&& f) {
  const bool from = corner >= side - 1, to = corner + side - 1 < window;
  if (from && to)
    f([](int) { return true; });
  else if (from)
    f([&](int back) { return back < window; });
  else if (to)
    f([](int back) { return back >= 0; });
  else
    f([&](int back) { return back >= 0 && back < window; });
}

// Loads log-sum-exp, times log2_e, and delta of the lane's two queries, `row` and 8 more. What is of a row beyond the
// document stays as it is.
__device__ inline void load_statistics(float (&lse)[2], float (&delta)[2], const AttentionArguments& a,
                                       const kernel::Document& d, int head, int row) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (const int own = row + 8 * half; own < d.q_count) {
      lse[half] = *kernel::lse_at(a, d, head, own) * log2_e;
      delta[half] = *kernel::delta_at(a, d, head, own);
    }
}

// Begins to copy a query's delta, or its log-sum-exp, to shared memory: zero beyond the document.
__device__ inline void copy_statistic(float* to, bool is_delta, const AttentionArguments& a, const kernel::Document& d,
                                      int head, int query) {
  const bool inside = query < d.q_count;
  const float* const from = is_delta ? kernel::delta_at(a, d, head, query) : kernel::lse_at(a, d, head, query);
  copy_float(to, inside ? from : a.lse, inside);
}

// Scores of queries by keys become P = exp(scale score - lse) where a query sees a key, else 0: as powers of two, so
// that `scale` and the log-sum-exps, of the lane's two queries, are times log2_e. `corner` and `distance` say how many
// keys before the query's last one the key is, for the tile's first element and for the lane's.
__device__ inline void query_probabilities(Sums& scores, float scale, const float (&lse)[2], int corner, int distance,
                                           int window) {
  with_window(corner, window, [&](auto sees) {
#pragma unroll
    for (int n = 0; n < side / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float p = power_of_two(fmaf(scores[4 * n + i], scale, -lse[i / 2]));
        scores[4 * n + i] = sees(distance + i / 2 * 8 - 8 * n - i % 2) ? p : 0.0f;
      }
  });
}
// The same of keys by queries, whose log-sum-exps are as they are, in shared memory.
__device__ inline void key_probabilities(Sums& scores, float scale, const float (&lse)[side], int corner, int distance,
                                         int window) {
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
  with_window(corner, window, [&](auto sees) {
#pragma unroll
    for (int n = 0; n < side / 8; ++n) {
      const float2 natural = *reinterpret_cast<const float2*>(&lse[8 * n + column]);
      const float own[2] = {natural.x * log2_e, natural.y * log2_e};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float p = power_of_two(fmaf(scores[4 * n + i], scale, -own[i % 2]));
        scores[4 * n + i] = sees(distance + 8 * n + i % 2 - i / 2 * 8) ? p : 0.0f;
      }
    }
  });
}

// P becomes dS = P (dP - delta), delta of the lane's two queries.
__device__ inline void query_score_gradients(Sums& p, const Sums& dp, const float (&delta)[2]) {
#pragma unroll
  for (int n = 0; n < side / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) p[4 * n + i] *= dp[4 * n + i] - delta[i / 2];
}
// The same of keys by queries, whose deltas are in shared memory.
__device__ inline void key_score_gradients(Sums& p, const Sums& dp, const float (&delta)[side]) {
#pragma unroll
  for (int n = 0; n < side / 8; ++n) {
    const float2 own = *reinterpret_cast<const float2*>(&delta[8 * n + static_cast<int>(threadIdx.x) % 4 * 2]);
#pragma unroll
    for (int i = 0; i < 4; ++i) p[4 * n + i] *= dp[4 * n + i] - (i % 2 ? own.y : own.x);
  }
}

// Here and now: the compiler makes every product wait for the one before it if sums are set while some are under way.
__device__ inline void clear(Sums& sums) {
#pragma unroll
  for (float& x : sums) x = 0;
  settled(sums);
}
template <int PARTS>
__device__ inline void clear(Sums (&sums)[PARTS]) {
#pragma unroll
  for (Sums& part : sums) clear(part);
}

// The block's tile of a.cu_q or a.cu_k, and key head: those of one tile are neighbours, as are their heads in memory.
struct Place {
  kernel::Tile tile;
  int kv_head;
  __device__ Place(const AttentionArguments& a, const std::int32_t* cu)
      : tile(kernel::find_tile(a, cu, side, static_cast<int>(blockIdx.x) / a.kv_heads)),
        kv_head(static_cast<int>(blockIdx.x) % a.kv_heads) {}
};

// Runs a kernel on all places of `rows` rows of documents.
template <class Shared, class Kernel>
void launch(Kernel* kernel, const char* name, std::int64_t rows, int threads, cudaStream_t stream,
            const AttentionArguments& a) {
  SO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
  SO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  const unsigned blocks = so::kernel::blocks_for(so::kernel::most_tiles(rows, a.documents, side) * a.kv_heads, 1);
  kernel<<<blocks, threads, sizeof(Shared), stream>>>(a);
  SO_CUDA_LAUNCHED(name);
}

// How a block goes over a tile of queries of a key head: two groups of warps take the query heads in turn, a pair of
// heads at a time, each over all tiles of keys that its queries see. Up to `slots` such tiles are loaded once for all
// heads, more for each pair of heads anew.
inline constexpr int query_groups = 2, query_threads = query_groups * group_threads, slots = 3;

template <int D>
struct KeySlots {
  bf16_t k[slots][side * D], v[slots][side * D];
};

struct QueryWalk {
  kernel::Document d;
  int first_row, rows;  // of the document
  int kv_head, heads;   // query heads of the key head
  int pairs, first_key, blocks;

  __device__ QueryWalk(const AttentionArguments& a, const Place& place)
      : d(place.tile.document),
        first_row(place.tile.first),
        rows(d.q_count - first_row),
        kv_head(place.kv_head),
        heads(a.heads / a.kv_heads),
        pairs((heads + query_groups - 1) / query_groups),
        first_key(d.first(first_row)),
        blocks((d.visible(min(first_row + side, d.q_count) - 1) - first_key + side - 1) / side) {}

  __device__ bool resident() const { return blocks <= slots; }
  __device__ int after(int slot) const { return slot + 1 < (resident() ? blocks : slots) ? slot + 1 : 0; }
  __device__ int head(int in_pair) const { return kv_head * heads + in_pair; }
  // Query r sees key c where 0 <= r + shift - c < window.
  __device__ int shift() const { return d.k_count - d.q_count; }

  template <int D>
  __device__ void fetch_queries(bf16_t* to, const HeadsView& from, int in_pair) const {
    copy_tile<D, query_threads>(to, rows_of<D>(from, d.q_begin + first_row, head(in_pair)), from.width, rows);
  }
  template <int D>
  __device__ void fetch_keys(KeySlots<D>& to, const AttentionArguments& a, int block, int slot) const {
    const int begin = first_key + block * side;
    copy_tile<D, query_threads>(to.k[slot], rows_of<D>(a.k, d.k_begin + begin, kv_head), a.k.width, d.k_count - begin);
    copy_tile<D, query_threads>(to.v[slot], rows_of<D>(a.v, d.k_begin + begin, kv_head), a.v.width, d.k_count - begin);
  }

  // fetch(pair) copies the queries of a pair of heads, if there are such.
  template <int D, class F>
  __device__ void begin(KeySlots<D>& to, const AttentionArguments& a, const F& fetch) const {
    if (blocks > 0) {
      fetch(0);
      for (int block = 0; block < (resident() ? blocks : 1); ++block) fetch_keys(to, a, block, block);
    }
    commit_copies();
  }
  // Returns when the tile of keys that `slot` is for is there, and the pair's queries; and has what comes next copied.
  template <int D, class F>
  __device__ void advance(KeySlots<D>& to, const AttentionArguments& a, int pair, int block, int slot,
                          const F& fetch) const {
    if (resident() && block > 0) return;
    // The copies of the last commit are of the next queries, unless these are.
    if (block == 0)
      wait_copies<0>();
    else
      wait_copies<1>();
    publish();
    __syncthreads();
    const bool last = block + 1 == blocks, another = pair + 1 < pairs;
    if (!resident() && (!last || another)) fetch_keys(to, a, last ? 0 : block + 1, after(slot));
    commit_copies();
    if (block == 0 && another) fetch(pair + 1);
    commit_copies();
  }
};

}  // namespace so::hopper
