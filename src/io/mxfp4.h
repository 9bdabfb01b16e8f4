// MXFP4 (OCP Microscaling Formats 1.0), in which GPT-OSS stores the matrices of its experts: blocks of 32 four-bit
// floats (e2m1) that share a power of two (e8m0, the exponent plus 127; 255 is not a number).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace so {

// A stored matrix, row-major: each row is columns / 32 blocks of 16 bytes, the even columns in the low halves of bytes,
// and as many scales.
struct Mxfp4Matrix {
  static constexpr std::int64_t block = 32;        // elements
  static constexpr std::int64_t block_bytes = 16;  // without their scale
  static constexpr std::uint8_t not_a_number = 255;

  std::int64_t rows = 0, columns = 0;  // columns: a multiple of `block`
  const std::byte* blocks = nullptr;
  const std::uint8_t* scales = nullptr;

  std::size_t blocks_bytes() const { return static_cast<std::size_t>(rows * columns / 2); }
  std::size_t scales_bytes() const { return static_cast<std::size_t>(rows * columns / block); }
};

// Half-open.
struct Mxfp4Window {
  std::int64_t row_begin = 0, row_end = 0, column_begin = 0, column_end = 0;
};

// A window of the matrix transposed, as transformers' modules hold it: out[column][row], without gaps between rows of
// the result. `wide` and `narrow`: each may be null. Every value is exact in both forms, the smallest as subnormal
// numbers, but for those of 2^128 and more (scales 253 and 254), which become infinite, as in transformers. Scales of
// 255 are the caller's to refuse.
void dequantise_transposed(const Mxfp4Matrix& matrix, const Mxfp4Window& window, float* wide, bf16* narrow);

}  // namespace so
