// Where the rows of a matrix in FP8 and their scales lie. cuBLASLt multiplies rows in fours, so a matrix of R rows has
// memory for whole fours, rows of zeros behind its own. The rows of the last four that is not whole are multiplied
// apart, and have scales apart: first those of [blocks, whole rows], then those of [blocks, 4].
#pragma once

#include <cstdint>

#include "ops/fp8_matrix.h"

namespace so {

inline constexpr std::int64_t fp8_rows_at_once = 4;

// Rows that a matrix of `rows` has memory for.
constexpr std::int64_t fp8_stored_rows(std::int64_t rows) {
  return (rows + fp8_rows_at_once - 1) / fp8_rows_at_once * fp8_rows_at_once;
}
// Those that are multiplied together.
constexpr std::int64_t fp8_whole_rows(std::int64_t rows) { return rows / fp8_rows_at_once * fp8_rows_at_once; }

// Where, among the scales of a matrix in blocks of rows, that of block `block` of row `row` is; `blocks`: of a row.
constexpr std::int64_t fp8_scale_at(std::int64_t rows, std::int64_t blocks, std::int64_t row, std::int64_t block) {
  const std::int64_t whole = fp8_whole_rows(rows);
  return row < whole ? block * whole + row : blocks * whole + block * fp8_rows_at_once + row - whole;
}

// A matrix [rows, k] in memory that acquire(dtype, rows, columns) gives: of the codes first, then of the scales.
template <class Acquire>
Fp8Matrix make_fp8_matrix(Fp8Matrix::Blocks blocks, std::int64_t rows, std::int64_t k, const Acquire& acquire) {
  const auto [across, along] = Fp8Matrix::scale_shape(blocks, rows, k);
  const Tensor codes = acquire(DType::u8, fp8_stored_rows(rows), Fp8Matrix::width(k));
  return {blocks, codes, acquire(DType::f32, across, along)};
}

}  // namespace so
