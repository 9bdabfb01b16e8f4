// Code that the kernels of state spaces in chunks share. Included by .cu files only.
//
// In a chunk of 64 rows with B, C and X, steps s and G, the sum of the logarithms of decays up to each row, G' that of
// the whole chunk, and S, the state before it:
//
//   out = exp(G) C S + P X + skip X     P = lower part of exp(G_i - G_j) s_j C B^T     S' = exp(G') S + B^T (s exp(G' -
//   G) X)
//
// [Mamba2, Dao & Gu 2024]. The state is kept transposed, so that it is the left operand of its products and never
// leaves the registers. Segments of 8 chunks are done at the same time: first what each makes of a state of zeros,
// then, over the segments of a document, the states before each, then the outputs. The gradient of the state goes the
// same way from the end of a document to its beginning.
#pragma once

#include "ops/cuda/hopper/chunk_tiles.h"
#include "ops/cuda/state_space.h"

namespace so::hopper {

inline constexpr int space_elements = side * head_dim;  // of a state, v_dim x k_dim
inline constexpr int segment_chunks = static_cast<int>(state_space_segment) / side;
static_assert(state_space_chunk == side && state_space_segment % side == 0);

// Where ChunkedSpaceScratch places what is made of segments and chunks.
struct SpaceArrays {
  float *segments, *decays;
  bf16_t *states, *dstates;
};

// Rows that are done together, by their number among those of all documents.
struct SpacePiece {
  int document, document_rows;  // first row, rows
  int number;                   // within the document
  int begin, rows;              // not above 0: there are none
};
template <int ROWS>
__device__ SpacePiece find_piece(const SpaceArguments& a, int number) {
  int low = 0, high = a.documents;  // the last document whose first piece is not behind this one
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (a.starts[middle] / ROWS + middle <= number)
      low = middle;
    else
      high = middle;
  }
  const int first = a.starts[low], end = a.starts[low + 1], own = number - (first / ROWS + low);
  const int begin = first + own * ROWS;
  return {first, end - first, own, begin, own >= 0 ? min(ROWS, end - begin) : 0};  // none before the first document's
}

// A segment of a document, and its chunks.
struct SpaceSegment : SpacePiece {
  __device__ SpaceSegment(const SpaceArguments& a, int number_of_all)
      : SpacePiece(find_piece<static_cast<int>(state_space_segment)>(a, number_of_all)) {}
  __device__ int of_document() const {
    return (document_rows + static_cast<int>(state_space_segment) - 1) / static_cast<int>(state_space_segment);
  }
  __device__ int chunks() const { return (rows + side - 1) / side; }
  __device__ int row(int chunk) const { return begin + chunk * side; }
  __device__ int count(int chunk) const { return min(side, rows - chunk * side); }
  // Of this document's segment `which`, as an element of decays; times space_elements, of segments.
  __device__ std::int64_t place(const SpaceArguments& a, int which, int head) const {
    return static_cast<std::int64_t>(document / static_cast<int>(state_space_rows_of_segment) + which) * a.heads + head;
  }
};

// Where a chunk's state lies, of a document of several.
__device__ inline std::int64_t chunk_state(const SpaceArguments& a, int document, int chunk, int head) {
  const int place = document / static_cast<int>(state_space_rows_of_chunk) + chunk;
  return (static_cast<std::int64_t>(place) * a.heads + head) * space_elements;
}

// Below this exp() is 0 in fp32. What is smaller counts as this: a sum of such would leave no digits to the others',
// and differences of infinities are no numbers. A NaN stays one.
inline constexpr float least_decay = -128;

// One warp: the steps of a chunk's rows and the sums of the logarithms of decays up to each. Beyond the last row
// nothing moves and nothing decays.
__device__ inline void find_totals(float* total, float* step, const SpaceArguments& a, int begin, int count, int head) {
  const int lane = thread_number() % kernel::warp;
  float sum[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * lane + i;
    const std::int64_t at = (begin + row) * a.gate_width + head;
    const float decay = row < count ? a.decay[at] : 0;
    sum[i] = decay < least_decay ? least_decay : decay;
    step[row] = row < count ? a.step[at] : 0;
  }
  sum[1] += sum[0];
  float before = sum[1];
#pragma unroll
  for (int distance = 1; distance < kernel::warp; distance *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, before, distance);
    if (lane >= distance) before += other;
  }
  before = __shfl_up_sync(0xffffffffu, before, 1);
  if (lane == 0) before = 0;
  total[2 * lane] = sum[0] + before;
  total[2 * lane + 1] = sum[1] + before;
}

// The same of a segment's chunks, by a group of warps.
struct SegmentScales {
  float total[segment_chunks][side], step[segment_chunks][side];
  __device__ void find(const SpaceArguments& a, const SpaceSegment& segment, int head) {
    for (int chunk = thread_number() / kernel::warp; chunk < segment.chunks(); chunk += group_threads / kernel::warp)
      find_totals(total[chunk], step[chunk], a, segment.row(chunk), segment.count(chunk), head);
  }
  __device__ float of_chunk(int chunk) const { return total[chunk][side - 1]; }
};

// f(four of the lane's elements, their place among those of a state in memory, as kernels leave them to each other).
template <class F>
__device__ inline void for_each_quad(Sums (&state)[head_parts], float* memory, const F& f) {
  auto* const at = reinterpret_cast<float4*>(memory) + thread_number();
#pragma unroll
  for (int part = 0; part < head_parts; ++part)
#pragma unroll
    for (int n = 0; n < side / 8; ++n) f(&state[part][4 * n], at[(part * (side / 8) + n) * group_threads]);
}
__device__ inline void read_state(Sums (&state)[head_parts], float* memory) {
  for_each_quad(state, memory,
                [](float* to, const float4& from) { to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w; });
}
__device__ inline void write_state(Sums (&state)[head_parts], float* memory) {
  for_each_quad(state, memory, [](const float* from, float4& to) { to = float4{from[0], from[1], from[2], from[3]}; });
}
// f(element, that of a state as the op takes it, f32 [k_dim, v_dim]).
template <class F>
__device__ inline void for_each_of_state(Sums (&state)[head_parts], float* memory, const F& f) {
#pragma unroll
  for (int part = 0; part < head_parts; ++part)
#pragma unroll
    for (int n = 0; n < side / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) f(state[part][4 * n + i], memory[(part * side + column_of(n, i)) * side + row_of(i)]);
}

__device__ inline void clear(Sums (&state)[head_parts]) {
#pragma unroll
  for (int part = 0; part < head_parts; ++part)
#pragma unroll
    for (int i = 0; i < side / 2; ++i) state[part][i] = 0;
}
__device__ inline void scale(Sums (&state)[head_parts], float factor) {
#pragma unroll
  for (int part = 0; part < head_parts; ++part)
#pragma unroll
    for (int i = 0; i < side / 2; ++i) state[part][i] *= factor;
}

// to = the operand's columns times f(column).
template <class F>
__device__ inline void scale_columns(Operand& to, const Operand& from, const F& f) {
  Sums scaled;
  const int first = column_of(0, 0);
#pragma unroll
  for (int n = 0; n < side / 8; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float factor = f(first + 8 * n + i);
      scaled[4 * n + i] = element(from, n, i) * factor;
      scaled[4 * n + i + 2] = element(from, n, i + 2) * factor;
    }
  to_operand(to, scaled);
}
template <class F>
__device__ inline void scale_columns(Sums& sums, const F& f) {
  const int first = column_of(0, 0);
#pragma unroll
  for (int n = 0; n < side / 8; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float factor = f(first + 8 * n + i);
      sums[4 * n + i] *= factor;
      sums[4 * n + i + 2] *= factor;
    }
}

// The products of rows i and j of a chunk become their lower part times exp(G_i - G_j) f(j).
template <class F>
__device__ inline void mask_products(Sums& products, const float* total, const F& f) {
  const int first = column_of(0, 0), first_row = row_of(0);
  const float at_row[2] = {total[first_row], total[first_row + 8]};
#pragma unroll
  for (int n = 0; n < side / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + i / 2 * 8, column = first + 8 * n + i % 2;
      const float left = column <= row ? __expf(at_row[i / 2] - total[column]) * f(column) : 0;
      products[4 * n + i] = column <= row ? products[4 * n + i] * left : 0;  // what is not seen may be no number
    }
}

// The states before segments, or in reverse the gradients of those after them; and the states before chunks.
// space_scan.cu.
void find_segment_states(cudaStream_t stream, const SpaceArguments& a, const SpaceArrays& arrays,
                         const StateSpaceSize& size, bool reverse);
void keep_chunk_states(cudaStream_t stream, const SpaceArguments& a, const SpaceArrays& arrays,
                       const StateSpaceSize& size);
// db, dc and ddecay; space_gradient.cu.
void finish_projections(cudaStream_t stream, const SpaceArguments& a, const SpaceArrays& arrays,
                        const StateSpaceSize& size);

}  // namespace so::hopper
