// Rounding to FP8 in kernels: codes of a part of a row, and of a square of 128 x 128 by rows and by columns. Included
// by .cu files only.
#pragma once

#include <cuda_fp8.h>

#include "base/e4m3.h"
#include "device/cuda/kernel.h"
#include "ops/fp8_layout.h"

namespace so::kernel {

// Where a matrix in FP8 goes; without codes it is not wanted.
struct Fp8Target {
  std::uint8_t* codes;
  float* scales;
  std::int64_t width, stride;  // codes, and scales of squares, from a row to the next
  std::int64_t rows, blocks;   // of the matrix, and of a row

  __device__ std::int64_t stored_rows() const {  // fp8_stored_rows()
    return (rows + fp8_rows_at_once - 1) / fp8_rows_at_once * fp8_rows_at_once;
  }
  __device__ float* scale_at(std::int64_t row, std::int64_t block) const {  // fp8_scale_at()
    const std::int64_t whole = rows / fp8_rows_at_once * fp8_rows_at_once;
    return scales + (row < whole ? block * whole + row : blocks * whole + block * fp8_rows_at_once + row - whole);
  }
};

inline Fp8Target target_of(const Fp8Matrix& matrix, std::int64_t rows) {
  if (!matrix) return {};
  return {matrix.codes.as<std::uint8_t>(), matrix.scales.as<float>(), matrix.codes.dim(1), matrix.scales.dim(1), rows,
          matrix.codes.dim(1) / fp8_block};
}

__device__ inline unsigned magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// The device's own E4m3Scale.
__device__ inline void scale_of(unsigned largest, float& value, float& inverse) {
  constexpr unsigned seven_quarters = 0x600000, most = 127 + 120;
  unsigned field = largest == 0 ? 127 + 8 : largest >> 23;
  field += (largest & 0x7fffffu) > seven_quarters ? 1 : 0;
  field = min(field > 9 ? field - 8 : 1, most);
  value = __uint_as_float(field << 23);
  inverse = __uint_as_float((254 - field) << 23);
}

// Rounds elements of a block whose largest magnitude is `largest`. Returns the block's scale.
template <int N>
__device__ inline float round_to_codes(unsigned (&codes)[N / 4], const float (&x)[N], unsigned largest) {
  constexpr unsigned infinite = 0x7f800000u;  // of magnitudes
  float scale, inverse;
  scale_of(largest, scale, inverse);
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    const unsigned low = __nv_cvt_float2_to_fp8x2(make_float2(x[i] * inverse, x[i + 1] * inverse), __NV_SATFINITE,
                                                  __NV_E4M3),
                   high = __nv_cvt_float2_to_fp8x2(make_float2(x[i + 2] * inverse, x[i + 3] * inverse), __NV_SATFINITE,
                                                   __NV_E4M3);
    codes[i / 4] = low | high << 16;
  }
  // The instruction rounds what is too large to the largest code. Only numbers that are not finite are too large here.
  if (largest >= infinite) {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (magnitude(x[i]) >= infinite)
        codes[i / 4] = (codes[i / 4] & ~(0xffu << i % 4 * 8)) | unsigned{e4m3_nan} << i % 4 * 8;
  }
  return scale;
}

// Rounds a row's N elements from `column` on, which are rounded to the activations' format; a block's elements are in
// neighbouring lanes, all of which take part.
template <int N>
__device__ inline void round_part_of_row(const Fp8Target& to, std::int64_t row, std::int64_t column,
                                         const float (&x)[N]) {
  constexpr int lanes = static_cast<int>(fp8_block) / N;
  static_assert(lanes <= warp);
  const unsigned lane = threadIdx.x % warp;
  const unsigned together = lanes == warp ? 0xffffffffu : ((1u << lanes % warp) - 1) << lane / lanes * lanes;
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) largest = max(largest, magnitude(x[i]));
#pragma unroll
  for (int other = lanes / 2; other > 0; other /= 2) largest = max(largest, __shfl_xor_sync(together, largest, other));
  unsigned codes[N / 4];
  const float scale = round_to_codes(codes, x, largest);
  store_words(to.codes + row * to.width + column, codes);
  if (lane % lanes == 0) *to.scale_at(row, column / fp8_block) = scale;
}

// A square of 128 x 128 elements is rounded by a block of threads. Each has `own` rows of it, of `own` columns side by
// side.
namespace fp8_square {

constexpr int side = fp8_block, own = 8, across = side / own, threads = across * across;
static_assert(across == 16 && threads == 256);

// A square's codes, transposed: [column][row], where threads write eight rows of a column and read sixteen. Pieces of
// eight lie in an order of their column's own, so that neither meets others in a bank.
struct Transposed {
  uint2 pieces[side][across];

  __device__ void write(int column, int piece, const unsigned (&codes)[own / 4]) {
    pieces[column][piece ^ (column / own)] = make_uint2(codes[0], codes[1]);
  }
  // Pieces 2 `pair` and 2 `pair` + 1.
  __device__ uint4 read(int column, int pair) const {
    const int turned = (2 * pair) ^ (column / own);
    const uint4 both = *reinterpret_cast<const uint4*>(&pieces[column][turned & ~1]);
    return turned % 2 == 0 ? both : make_uint4(both.z, both.w, both.x, both.y);
  }
};

// A block of threads has one. A square that is rounded by columns leaves it ready for the next.
struct Shared {
  unsigned largest_parts[threads / warp][side];
  alignas(16) Transposed transposed;
};

// Rounds a square to by_row, unless that is not wanted, and to by_column; rows behind the matrix's are words of zeros.
// SQUARES: one scale for the square. COLUMNS: by_column is wanted. The square is number `block_of_rows` from the top,
// and `block_of_columns` from the left.
template <class T, bool SQUARES, bool COLUMNS>
__device__ inline void round(Shared& shared, const Fp8Target& by_row, const Fp8Target& by_column,
                             const Words<T, own> (&words)[own], std::int64_t block_of_rows,
                             std::int64_t block_of_columns) {
  constexpr int warps = threads / warp;
  const int tx = threadIdx.x % across, ty = threadIdx.x / across;
  const std::int64_t first_row = block_of_rows * side, first_column = block_of_columns * side;
  const std::int64_t row = first_row + ty * own, column = first_column + tx * own;

  unsigned row_largest[own] = {}, column_largest[own] = {};
#pragma unroll
  for (int r = 0; r < own; ++r) {
    float values[own];
    widen<T>(values, words[r]);
#pragma unroll
    for (int c = 0; c < own; ++c) {
      row_largest[r] = max(row_largest[r], magnitude(values[c]));
      if (COLUMNS && !SQUARES) column_largest[c] = max(column_largest[c], magnitude(values[c]));
    }
  }
  if constexpr (SQUARES) {
    unsigned all = row_largest[0];
#pragma unroll
    for (int r = 1; r < own; ++r) all = max(all, row_largest[r]);
    all = __reduce_max_sync(0xffffffffu, all);
    if (threadIdx.x % warp == 0) shared.largest_parts[threadIdx.x / warp][0] = all;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < warps; ++w) all = max(all, shared.largest_parts[w][0]);
#pragma unroll
    for (int i = 0; i < own; ++i) row_largest[i] = column_largest[i] = all;
  } else {
    // Sixteen neighbouring lanes have the whole of a row.
#pragma unroll
    for (int r = 0; r < own; ++r)
#pragma unroll
      for (int lane = across / 2; lane > 0; lane /= 2)
        row_largest[r] = max(row_largest[r], __shfl_xor_sync(0xffffffffu, row_largest[r], lane));
    if constexpr (COLUMNS) {
      // A warp has two rows of threads, and the eight warps the whole of a column.
#pragma unroll
      for (int c = 0; c < own; ++c)
        column_largest[c] = max(column_largest[c], __shfl_xor_sync(0xffffffffu, column_largest[c], across));
      if (threadIdx.x % warp < across) {
#pragma unroll
        for (int c = 0; c < own; ++c) shared.largest_parts[threadIdx.x / warp][tx * own + c] = column_largest[c];
      }
      __syncthreads();
#pragma unroll
      for (int c = 0; c < own; ++c)
#pragma unroll
        for (int w = 0; w < warps; ++w)
          column_largest[c] = max(column_largest[c], shared.largest_parts[w][tx * own + c]);
    }
  }

  if (by_row.codes) {
    const std::int64_t stored_rows = by_row.stored_rows();
#pragma unroll
    for (int r = 0; r < own; ++r) {
      if (row + r >= stored_rows) break;
      float values[own];
      widen<T>(values, words[r]);
      unsigned codes[own / 4];
      const float scale = round_to_codes(codes, values, row_largest[r]);
      store_words(by_row.codes + (row + r) * by_row.width + column, codes);
      if (!SQUARES && tx == 0) *by_row.scale_at(row + r, block_of_columns) = scale;
      if (SQUARES && threadIdx.x == 0 && r == 0)
        by_row.scales[block_of_rows * by_row.stride + block_of_columns] = scale;
    }
  }
  if constexpr (COLUMNS) {
#pragma unroll
    for (int c = 0; c < own; ++c) {
      float values[own];
#pragma unroll
      for (int r = 0; r < own; ++r) {
        float of_row[own];
        widen<T>(of_row, words[r]);
        values[r] = of_row[c];
      }
      unsigned codes[own / 4];
      const float scale = round_to_codes(codes, values, column_largest[c]);
      shared.transposed.write(tx * own + c, ty, codes);
      if (!SQUARES && ty == 0) *by_column.scale_at(column + c, block_of_rows) = scale;
      if (SQUARES && threadIdx.x == 0 && c == 0)
        by_column.scales[block_of_columns * by_column.stride + block_of_rows] = scale;
    }
    __syncthreads();
    constexpr int pairs = across / 2, bytes = 2 * own;
#pragma unroll
    for (int i = threadIdx.x; i < side * pairs; i += threads) {
      const int c = i / pairs, pair = i % pairs;
      *reinterpret_cast<uint4*>(by_column.codes + (first_column + c) * by_column.width + first_row + pair * bytes) =
          shared.transposed.read(c, pair);
    }
  }
}

}  // namespace fp8_square
}  // namespace so::kernel
