// Rounding to FP8 in blocks: one pass over a matrix for its rows and its columns. Memory-bound.
#include <cuda_fp8.h>

#include "base/e4m3.h"
#include "device/cuda/kernel.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/fp8_checks.h"
#include "ops/fp8_layout.h"

namespace so {
namespace {

using namespace kernel;

// A block of threads has a square of `side`. Each thread has `own` rows of it, of `own` columns side by side.
constexpr int side = fp8_block, own = 8, across = side / own, threads = across * across;
static_assert(across == 16 && threads == 256);

struct Fp8Target {
  std::uint8_t* codes;  // null: not wanted
  float* scales;
  std::int64_t width, stride;  // codes, and scales of squares, from a row to the next
  std::int64_t rows, blocks;   // of the matrix, and of a row

  __device__ float* scale_at(std::int64_t row, std::int64_t block) const {  // fp8_scale_at()
    const std::int64_t whole = rows / fp8_rows_at_once * fp8_rows_at_once;
    return scales + (row < whole ? block * whole + row : blocks * whole + block * fp8_rows_at_once + row - whole);
  }
};

Fp8Target target_of(const Fp8Matrix& matrix, std::int64_t rows) {
  if (!matrix) return {};
  return {matrix.codes.as<std::uint8_t>(), matrix.scales.as<float>(), matrix.codes.dim(1), matrix.scales.dim(1), rows,
          matrix.codes.dim(1) / side};
}

__device__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
constexpr unsigned infinite = 0x7f800000u;  // of magnitudes

// The device's own E4m3Scale.
__device__ void scale_of(unsigned largest, float& value, float& inverse) {
  constexpr unsigned seven_quarters = 0x600000, most = 127 + 120;
  unsigned field = largest == 0 ? 127 + 8 : largest >> 23;
  field += (largest & 0x7fffffu) > seven_quarters ? 1 : 0;
  field = min(field > 9 ? field - 8 : 1, most);
  value = __uint_as_float(field << 23);
  inverse = __uint_as_float((254 - field) << 23);
}

using Codes = unsigned[own / 4];

// Of elements of a block whose largest magnitude is `largest`. Returns the block's scale.
__device__ float round_to_codes(Codes& codes, const float (&x)[own], unsigned largest) {
  float scale, inverse;
  scale_of(largest, scale, inverse);
#pragma unroll
  for (int i = 0; i < own; i += 4) {
    const unsigned low = __nv_cvt_float2_to_fp8x2(make_float2(x[i] * inverse, x[i + 1] * inverse), __NV_SATFINITE,
                                                  __NV_E4M3),
                   high = __nv_cvt_float2_to_fp8x2(make_float2(x[i + 2] * inverse, x[i + 3] * inverse), __NV_SATFINITE,
                                                   __NV_E4M3);
    codes[i / 4] = low | high << 16;
  }
  // The instruction rounds what is too large to the largest code. Only numbers that are not finite are too large here.
  if (largest >= infinite) {
#pragma unroll
    for (int i = 0; i < own; ++i)
      if (magnitude(x[i]) >= infinite)
        codes[i / 4] = (codes[i / 4] & ~(0xffu << i % 4 * 8)) | unsigned{e4m3_nan} << i % 4 * 8;
  }
  return scale;
}

// A square's codes, transposed: [column][row], where threads write eight rows of a column and read sixteen. Pieces of
// eight lie in an order of their column's own, so that neither meets others in a bank.
struct Transposed {
  uint2 pieces[side][across];

  __device__ void write(int column, int piece, const Codes& codes) {
    pieces[column][piece ^ (column / own)] = make_uint2(codes[0], codes[1]);
  }
  // Pieces 2 `pair` and 2 `pair` + 1.
  __device__ uint4 read(int column, int pair) const {
    const int turned = (2 * pair) ^ (column / own);
    const uint4 both = *reinterpret_cast<const uint4*>(&pieces[column][turned & ~1]);
    return turned % 2 == 0 ? both : make_uint4(both.z, both.w, both.x, both.y);
  }
};

// rows x columns elements of x; columns is a multiple of `side`. SQUARES: one scale for the square. COLUMNS: by_column
// is wanted.
template <class T, bool SQUARES, bool COLUMNS>
__global__ void __launch_bounds__(threads, sizeof(T) == 2 ? 3 : 2)
    fp8_quantise_kernel(Fp8Target by_row, Fp8Target by_column, const T* x, std::int64_t rows, std::int64_t columns) {
  constexpr int warps = threads / warp;
  __shared__ unsigned largest_parts[warps][side];
  __shared__ alignas(16) Transposed transposed;
  const int tx = threadIdx.x % across, ty = threadIdx.x / across;
  const std::int64_t first_column = std::int64_t{blockIdx.x} * side, first_row = std::int64_t{blockIdx.y} * side;
  const std::int64_t column = first_column + tx * own, row = first_row + ty * own;

  Words<T, own> words[own];
#pragma unroll
  for (int r = 0; r < own; ++r)
    words[r] = row + r < rows ? fetch<own>(x + (row + r) * columns + column) : Words<T, own>{};
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
    if (threadIdx.x % warp == 0) largest_parts[threadIdx.x / warp][0] = all;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < warps; ++w) all = max(all, largest_parts[w][0]);
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
        for (int c = 0; c < own; ++c) largest_parts[threadIdx.x / warp][tx * own + c] = column_largest[c];
      }
      __syncthreads();
#pragma unroll
      for (int c = 0; c < own; ++c)
#pragma unroll
        for (int w = 0; w < warps; ++w) column_largest[c] = max(column_largest[c], largest_parts[w][tx * own + c]);
    }
  }

  if (by_row.codes) {
    const std::int64_t stored_rows = (rows + fp8_rows_at_once - 1) / fp8_rows_at_once * fp8_rows_at_once;
#pragma unroll
    for (int r = 0; r < own; ++r) {
      if (row + r >= stored_rows) break;
      float values[own];
      widen<T>(values, words[r]);
      Codes codes;
      const float scale = round_to_codes(codes, values, row_largest[r]);
      store_words(by_row.codes + (row + r) * by_row.width + column, codes);
      if (!SQUARES && tx == 0) *by_row.scale_at(row + r, blockIdx.x) = scale;
      if (SQUARES && threadIdx.x == 0 && r == 0) by_row.scales[blockIdx.y * by_row.stride + blockIdx.x] = scale;
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
      Codes codes;
      const float scale = round_to_codes(codes, values, column_largest[c]);
      transposed.write(tx * own + c, ty, codes);
      if (!SQUARES && ty == 0) *by_column.scale_at(column + c, blockIdx.y) = scale;
      if (SQUARES && threadIdx.x == 0 && c == 0) by_column.scales[blockIdx.x * by_column.stride + blockIdx.y] = scale;
    }
    __syncthreads();
    constexpr int pairs = across / 2, bytes = 2 * own;
#pragma unroll
    for (int i = threadIdx.x; i < side * pairs; i += threads) {
      const int c = i / pairs, pair = i % pairs;
      *reinterpret_cast<uint4*>(by_column.codes + (first_column + c) * by_column.width + first_row + pair * bytes) =
          transposed.read(c, pair);
    }
  }
}

}  // namespace

void CudaOps::fp8_quantise(Stream& stream, Fp8Matrix rows, Fp8Matrix columns, Tensor x) {
  expect_fp8_quantise(rows, columns, x);
  const cudaStream_t on = enter(stream);
  if (x.size() == 0) return;
  const auto tiles = [](std::int64_t n) { return static_cast<unsigned>((n + side - 1) / side); };
  const dim3 grid(tiles(x.dim(1)), tiles(x.dim(0)));
  const bool squares = (rows ? rows : columns).blocks == Fp8Matrix::Blocks::squares;
  with_type(x.dtype(), [&]<class T> {
    const auto* from = static_cast<const T*>(x.data());
    SO_CHECK((rows_aligned<T, pack_size<T>>(x.dim(1), from)), "fp8_quantise: rows that do not begin at 16 bytes");
    const auto run = squares ? (columns ? fp8_quantise_kernel<T, true, true> : fp8_quantise_kernel<T, true, false>)
                             : (columns ? fp8_quantise_kernel<T, false, true> : fp8_quantise_kernel<T, false, false>);
    run<<<grid, threads, 0, on>>>(target_of(rows, x.dim(0)), target_of(columns, x.dim(1)), from, x.dim(0), x.dim(1));
  });
  SO_CUDA_LAUNCHED("fp8_quantise");
}

}  // namespace so
