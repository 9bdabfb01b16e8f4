// Products in FP8. Every value of a code times its scale is a bf16 number, so that the product of two matrices in FP8
// is that of the same matrices in bf16.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/e4m3.h"
#include "base/thread_pool.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/fp8_stripes.h"
#include "ops/cpu/gemm.h"
#include "ops/fp8_checks.h"
#include "ops/fp8_layout.h"

namespace so {
namespace {

constexpr std::int64_t side = fp8_block;

// The part of x that makes whole blocks of rows, columns or a square.
struct Fp8Tile {
  std::int64_t first_row, rows, first_column;  // `rows` is less than `side` at the end
  std::int64_t stored_rows;                    // with those of zeros that fill up a four
  float values[side][side];
  std::uint32_t row_largest[side], column_largest[side];  // bits of the magnitudes
  std::uint8_t codes[side][side], transposed[side][side];

  // x: the matrix's rows from first_row on.
  template <class T>
  void load(const T* x, std::int64_t stride) {
    std::fill_n(&values[0][0], side * side, 0.0f);
    std::fill_n(row_largest, side, 0u);
    std::fill_n(column_largest, side, 0u);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < side; ++c) {
        values[r][c] = static_cast<float>(x[r * stride + first_column + c]);
        const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(values[r][c]) & 0x7fffffffu;
        row_largest[r] = std::max(row_largest[r], magnitude);
        column_largest[c] = std::max(column_largest[c], magnitude);
      }
  }
  void make_one_square() {
    const std::uint32_t largest = *std::max_element(row_largest, row_largest + side);
    std::fill_n(row_largest, side, largest);
    std::fill_n(column_largest, side, largest);
  }
  void store_rows(const Fp8Matrix& to) {
    for (std::int64_t r = 0; r < stored_rows; ++r) {
      const float inverse = E4m3Scale(row_largest[r]).inverse;
      for (std::int64_t c = 0; c < side; ++c) codes[r][c] = e4m3_code(values[r][c] * inverse);
      std::copy_n(codes[r], side, to.codes.as<std::uint8_t>() + (first_row + r) * to.codes.dim(1) + first_column);
    }
  }
  void store_columns(const Fp8Matrix& to) {
    float inverse[side];
    for (std::int64_t c = 0; c < side; ++c) inverse[c] = E4m3Scale(column_largest[c]).inverse;
    for (std::int64_t r = 0; r < side; ++r)
      for (std::int64_t c = 0; c < side; ++c) codes[r][c] = e4m3_code(values[r][c] * inverse[c]);
    for (std::int64_t c = 0; c < side; ++c) {
      for (std::int64_t r = 0; r < side; ++r) transposed[c][r] = codes[r][c];
      std::copy_n(transposed[c], side, to.codes.as<std::uint8_t>() + (first_column + c) * to.codes.dim(1) + first_row);
    }
  }
  // Those of a matrix of `all` rows, from `first` on, in its block of columns `block`.
  static void store_scales(const Fp8Matrix& to, std::int64_t all, std::int64_t first, std::int64_t count,
                           std::int64_t block, const std::uint32_t* largest) {
    float* const scales = to.scales.as<float>();
    if (to.blocks == Fp8Matrix::Blocks::squares) {
      scales[first / side * to.scales.dim(1) + block] = E4m3Scale(largest[0]).value;
      return;
    }
    for (std::int64_t r = 0; r < count; ++r)
      scales[fp8_scale_at(all, to.scales.dim(0), first + r, block)] = E4m3Scale(largest[r]).value;
  }
};

template <class T>
void quantise_tiles(const Fp8Matrix& rows, const Fp8Matrix& columns, const Tensor& stripe, std::int64_t first_row,
                    std::int64_t all) {
  thread_local Fp8Tile tile;
  const std::int64_t width = stripe.dim(1);
  tile.first_row = first_row;
  tile.rows = stripe.dim(0);
  tile.stored_rows = std::min(side, fp8_stored_rows(all) - first_row);
  const bool squares = (rows ? rows : columns).blocks == Fp8Matrix::Blocks::squares;
  for (tile.first_column = 0; tile.first_column < width; tile.first_column += side) {
    tile.load(stripe.as<T>(), width);
    if (squares) tile.make_one_square();
    if (rows) {
      tile.store_rows(rows);
      Fp8Tile::store_scales(rows, all, first_row, tile.stored_rows, tile.first_column / side, tile.row_largest);
    }
    if (columns) {
      tile.store_columns(columns);
      Fp8Tile::store_scales(columns, width, tile.first_column, side, first_row / side, tile.column_largest);
    }
  }
}

// A matrix of `rows` in another format, [rows, width].
template <class T>
std::vector<T> dequantised(ThreadPool& pool, const Fp8Matrix& matrix, std::int64_t rows) {
  const std::int64_t width = matrix.codes.dim(1), blocks = width / side;
  std::vector<T> values(static_cast<std::size_t>(rows * width));
  const float* scales = matrix.scales.as<float>();
  const std::int64_t stride = matrix.scales.dim(1);
  const bool squares = matrix.blocks == Fp8Matrix::Blocks::squares;
  pool.parallel_for(rows, side, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t b = 0; b < blocks; ++b) {
        const float scale = scales[squares ? r / side * stride + b : fp8_scale_at(rows, blocks, r, b)];
        const std::uint8_t* codes = matrix.codes.as<std::uint8_t>() + r * width + b * side;
        for (std::int64_t k = 0; k < side; ++k)
          values[static_cast<std::size_t>(r * width + b * side + k)] = static_cast<T>(e4m3_value(codes[k]) * scale);
      }
  });
  return values;
}

// T: what meets a bias of this type.
template <class T>
void product(ThreadPool& pool, const Tensor& out, const Fp8Matrix& a, const Fp8Matrix& b, const Tensor& bias,
             Accumulate mode) {
  const std::vector<T> first = dequantised<T>(pool, a, out.dim(0)), second = dequantised<T>(pool, b, out.dim(1));
  const std::int64_t k = a.codes.dim(1);
  gemm(pool, Gemm{.m = out.dim(0),
                  .n = out.dim(1),
                  .k = k,
                  .ab = dtype_of<T>,
                  .a = first.data(),
                  .a_stride = k,
                  .b = second.data(),
                  .b_stride = k,
                  .b_transposed = true,
                  .bias = bias.data(),
                  .c_type = out.dtype(),
                  .c = out.data(),
                  .c_stride = out.dim(1),
                  .add = mode == Accumulate::add});
}

}  // namespace

void fp8_quantise_stripe(const Fp8Matrix& rows, const Fp8Matrix& columns, const Tensor& stripe, std::int64_t first,
                         std::int64_t all) {
  (stripe.dtype() == DType::bf16 ? quantise_tiles<bf16> : quantise_tiles<float>)(rows, columns, stripe, first, all);
}

void CpuOps::fp8_quantise(Stream& stream, Fp8Matrix rows, Fp8Matrix columns, Tensor x) {
  expect_fp8_quantise(rows, columns, x);
  cpu(stream).enqueue("fp8_quantise", WorkCategory::memory_bound, [=, &pool = cpu(stream).pool()] {
    for_each_fp8_stripe(pool, x.dim(0), [&](std::int64_t first, std::int64_t count) {
      fp8_quantise_stripe(rows, columns, x.rows(first, count), first, x.dim(0));
    });
  });
}

void CpuOps::fp8_product(Stream& stream, Tensor out, Fp8Matrix a, Fp8Matrix b, Tensor bias, Accumulate mode) {
  expect_fp8_product(out, a, b, bias);
  cpu(stream).enqueue("fp8_product", WorkCategory::matrix_products, [=, &pool = cpu(stream).pool()] {
    (bias && bias.dtype() == DType::f32 ? product<float> : product<bf16>)(pool, out, a, b, bias, mode);
  });
}

}  // namespace so
