// Attention with heads of 512 on Hopper's matrix units: code that its kernels share. Included by .cu files only.
//
// A block owns 64 rows of one head (queries, or keys in the gradients of k and v), whose sums of 64 x 512 fp32 are half
// of a multiprocessor's registers: two groups of warps have 256 columns each. It walks over the rows of the other side
// 128 at a time, of which each group computes the scores of 64; then both need the scores of all 128, which they
// exchange in shared memory. What is multiplied goes through a ring of parts, 128 rows of 64 columns each.
#pragma once

#include "ops/cuda/hopper/attention_tiles.h"

namespace so::hopper {

inline constexpr int wide_dim = 512, wide_parts = wide_dim / side, wide_rows = 2 * side;
inline constexpr int wide_groups = 2, wide_threads = wide_groups * group_threads;
inline constexpr int wide_ring_part = wide_rows * side;  // elements of a part of the ring
// The parts of 64 columns whose sums a group has.
inline constexpr int own_parts = wide_parts / wide_groups;
using WideSums = Sums[own_parts];

__device__ inline int wide_group() { return static_cast<int>(threadIdx.x) / group_threads; }

// A ring of parts in shared memory. Copies run ahead by all of them but two: one that is multiplied, and one whose
// products may still be under way.
template <int STAGES>
struct PartRing {
  static constexpr int ahead = STAGES - 2;
  bf16_t (*parts)[wide_ring_part];
  int fetching = 0, reading = -1;  // parts by number within the ring

  static __device__ int after(int part) { return part + 1 < STAGES ? part + 1 : 0; }

  // fetch(to) begins to copy the next part into `to`, if there is one.
  template <class F>
  __device__ void begin(F& fetch) {
    for (int i = 0; i < ahead; ++i) push(fetch);
  }
  // Returns the next part when it is there for all threads. Products of the part before may be under way, and must have
  // been committed; those of parts before that are complete.
  template <class F>
  __device__ const bf16_t* next(F& fetch) {
    wait_copies<ahead - 1>();
    publish();
    wait_products<1>();
    __syncthreads();
    push(fetch);
    reading = after(reading);
    return parts[reading];
  }

 private:
  template <class F>
  __device__ void push(F& fetch) {
    fetch(parts[fetching]);
    commit_copies();
    fetching = after(fetching);
  }
};

// Copies `count` (of 64) rows of a head into a tile that stays.
__device__ inline void copy_wide_tile(bf16_t* to, const bf16_t* from, std::int64_t width, int count) {
#pragma unroll 1
  for (int part = 0; part < wide_parts; ++part)
    copy_tile<side, wide_threads>(to + part * part_elements, from + part * side, width, count);
}
// Copies what a part of the ring holds, of rows of which there are `count` (of 128).
// For scores: 64 columns of all rows.
__device__ inline void copy_scored_part(bf16_t* to, const bf16_t* from, std::int64_t width, int count, int part) {
  from += part * side;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    copy_tile<side, wide_threads>(to + half * part_elements, from + half * side * width, width, count - half * side);
}
// For sums: 64 of the rows, of each group's columns 64. The parts of one such pair of columns follow each other.
__device__ inline void copy_summed_part(bf16_t* to, const bf16_t* from, std::int64_t width, int count, int part) {
  const int row = part % 2 * side;
  from += row * width + part / 2 * side;
#pragma unroll
  for (int group = 0; group < wide_groups; ++group)
    copy_tile<side, wide_threads>(to + group * part_elements, from + group * own_parts * side, width, count - row);
}

// c += a b^T of a tile that stays with the group's 64 of 128 rows from the ring, over all 512 columns.
template <int STAGES, class F>
__device__ inline void add_wide_scores(Sums& c, const bf16_t* a, PartRing<STAGES>& ring, F& fetch) {
#pragma unroll 1
  for (int part = 0; part < wide_parts; ++part) {
    const std::uint64_t right = descriptor(ring.next(fetch) + wide_group() * part_elements);
    const std::uint64_t left = descriptor(a + part * part_elements);
    begin_products();
#pragma unroll
    for (int k = 0; k < side / 16; ++k) multiply(c, left + k * column_step, right + k * column_step, true);
    commit_products();
  }
}

// sums += x b, the group's columns: x the scores of all 128 rows, of which each group brings 64 as operand by way of
// `exchange`, b from the ring. All products are complete when it returns: the next scores could not be cleared while
// some are under way (clear()).
template <int STAGES, class F>
__device__ inline void add_wide_products(WideSums& sums, const Operand& own, bf16_t (*exchange)[part_elements],
                                         PartRing<STAGES>& ring, F& fetch) {
  store_operand(exchange[wide_group()], own);
  Operand x[2];
#pragma unroll
  for (int part = 0; part < wide_parts; ++part) {
    const std::uint64_t right = descriptor(ring.next(fetch) + wide_group() * part_elements);
    if (part == 0) {  // that barrier is also the exchange's
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        load_operand(x[half], exchange[half]);
        settled(x[half]);
      }
      settled(sums);
    }
    begin_products();
#pragma unroll
    for (int k = 0; k < side / 16; ++k) multiply_operand(sums[part / 2], x[part % 2][k], right + k * row_step, true);
    commit_products();
  }
  wait_products<0>();
  settled(sums);
}

// Waits until shared memory is free: without a single block of rows not even the tile that stays has been waited for.
__device__ inline void end_walk() {
  wait_copies<0>();
  __syncthreads();
}
// Writes the group's columns of the first `count` (of 64) rows by way of a tile that nobody uses.
__device__ inline void store_wide_tile(bf16_t* to, std::int64_t width, bf16_t* tile, const WideSums& sums, float factor,
                                       int count) {
  const int first = wide_group() * own_parts;
  store_tile<own_parts * side>(to + first * side, width, tile + first * part_elements, sums, factor, count);
}

// The block's tile and head, of all of `heads` to a tile.
struct WidePlace {
  kernel::Tile tile;
  int head;
  __device__ WidePlace(const AttentionArguments& a, const std::int32_t* cu, int heads)
      : tile(kernel::find_tile(a, cu, side, static_cast<int>(blockIdx.x) / heads)),
        head(static_cast<int>(blockIdx.x) % heads) {}
};

template <class Shared, class Kernel>
void launch_wide(Kernel* kernel, const char* name, std::int64_t rows, int heads, cudaStream_t stream,
                 const AttentionArguments& a) {
  SO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
  const unsigned blocks = so::kernel::blocks_for(so::kernel::most_tiles(rows, a.documents, side) * heads, 1);
  kernel<<<blocks, wide_threads, sizeof(Shared), stream>>>(a);
  SO_CUDA_LAUNCHED(name);
}

}  // namespace so::hopper
