// Code that the kernels of the gated delta rule in chunks share. Included by .cu files only.
//
// In a chunk of 64 rows with the keys K, queries Q (normalised, queries also times 1 / sqrt(k_dim)), values V, rates b
// and G, the sum of the logarithms of decays up to each row, G' that of the whole chunk, and S, the state before it:
//
//   A = strictly lower part of b exp(G_i - G_j) K K^T        T = (1 + A)^-1     P = lower part of exp(G_i - G_j) Q K^T
//   U = T (b V - b exp(G) K S)      out = exp(G) Q S + P U     S' = exp(G') S + (exp(G' - G) K)^T U
//
// [DeltaNet in chunks, Yang et al. 2024]. The state is kept transposed, so that it is the left operand of its products
// and never leaves the registers.
#pragma once

#include "ops/cuda/delta_rule.h"
#include "ops/cuda/hopper/chunk_tiles.h"

namespace so::hopper {

inline constexpr int state_elements = head_dim * head_dim;

// Where ChunkedDeltaScratch places what is made of chunks.
struct DeltaArrays {
  bf16_t *inverse, *scores;
  float4* scales;  // of a row: rate, rate exp(G) / |k|, exp(G) / (|q| sqrt(k_dim)), exp(G' - G) / |k|
  float *decays, *totals;
  float *q_norms, *k_norms;  // 1 / |q|, 1 / |k|; null: nobody asks
  bf16_t *values, *dvalues, *states, *dstates;
};

__device__ inline int state_place(int first_row, int chunk) {
  return first_row / static_cast<int>(delta_rows_of_state) + chunk;
}

// A chunk, by its number among those of all documents.
struct DeltaChunk {
  int begin, count;  // rows of the batch
  int state;         // its place among states, -1 if it is its document's only chunk
  __device__ bool any() const { return count > 0; }
};
__device__ inline DeltaChunk find_chunk(const DeltaArguments& a, int number) {
  int low = 0, high = a.documents;  // the last document whose first chunk is not behind this one
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (a.starts[middle] / side + middle <= number)
      low = middle;
    else
      high = middle;
  }
  const int first = a.starts[low], end = a.starts[low + 1], chunk = number - (first / side + low);
  const int begin = first + chunk * side;
  return {begin, min(side, end - begin), end - first > side ? state_place(first, chunk) : -1};
}

// The places of a value head's row, and of its state.
__device__ inline std::int64_t row_place(const DeltaArguments& a, int row, int head) { return head * a.rows + row; }
__device__ inline std::int64_t state_offset(const DeltaArguments& a, int state, int head) {
  return (static_cast<std::int64_t>(state) * a.v_heads + head) * state_elements;
}

// The inputs of one step of a scan over a document's chunks, in shared memory.
struct ScanTiles {
  bf16_t k[side * head_dim], q[side * head_dim];
  bf16_t values[part_elements], inverse[part_elements], scores[part_elements];
  float4 scales[side];
};
inline constexpr int scan_stages = 3;
struct ScanShared {
  ScanTiles tiles[scan_stages];
  bf16_t out[part_elements];
};

// The block's share of a scan: half of the v_dim of a value head of a document, with one group of warps.
struct ScanPlace {
  int half, head, k_head, begin, rows, chunks;
  __device__ explicit ScanPlace(const DeltaArguments& a) {
    half = static_cast<int>(blockIdx.x) % head_parts;
    head = static_cast<int>(blockIdx.x) / head_parts % a.v_heads;
    const int document = static_cast<int>(blockIdx.x) / head_parts / a.v_heads;
    k_head = head / (a.v_heads / a.k_heads);
    begin = a.starts[document];
    rows = a.starts[document + 1] - begin;
    chunks = (rows + side - 1) / side;
  }
  __device__ int row(int chunk) const { return begin + chunk * side; }
  __device__ int count(int chunk) const { return min(side, rows - chunk * side); }
  // Where the block's half of a state of this chunk lies; keeps_states() says whether it has a place.
  __device__ bool keeps_states() const { return chunks > 1; }
  __device__ std::int64_t state(const DeltaArguments& a, int chunk) const {
    return state_offset(a, state_place(begin, chunk), head) + half * side * head_dim;
  }
  // Begins to copy what a step needs of a chunk of the document; `values` are v or dout.
  __device__ void fetch(ScanTiles& to, const DeltaArguments& a, const DeltaArrays& arrays, const HeadRows& values,
                        int chunk, bool queries) const {
    const int first = row(chunk), some = count(chunk);
    const std::int64_t own = row_place(a, first, head);
    copy_tile<head_dim, group_threads>(to.k, rows_of(a.k, first, k_head), a.k.width, some);
    copy_tile<side, group_threads>(to.values, rows_of(values, first, head) + half * side, values.width, some);
    copy_tile<side, group_threads>(to.inverse, arrays.inverse + own * side, side, some);
    if (queries) {
      copy_tile<head_dim, group_threads>(to.q, rows_of(a.q, first, k_head), a.q.width, some);
      copy_tile<side, group_threads>(to.scores, arrays.scores + own * side, side, some);
    }
    const int thread = thread_number();
    if (thread < side) {
      const bool inside = thread < some;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to.scales + thread)),
                   "l"(arrays.scales + own + (inside ? thread : 0)), "r"(inside ? 16 : 0)
                   : "memory");
    }
  }
  __device__ float decay(const DeltaArguments& a, const DeltaArrays& arrays, int chunk) const {
    return chunk >= 0 && chunk < chunks ? arrays.decays[row_place(a, row(chunk), head)] : 0;
  }
};

void prepare_chunks(cudaStream_t stream, const DeltaArguments& a, const DeltaArrays& arrays, const DeltaSize& size);

DeltaArrays delta_arrays(const DeltaArguments& a, const DeltaSize& size, bool gradient);

}  // namespace so::hopper
