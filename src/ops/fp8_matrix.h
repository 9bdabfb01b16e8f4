// Matrices in E4M3 (base/e4m3.h) with a scale for each block, as products take them [DeepSeek-V3, DeepSeek-AI 2024].
#pragma once

#include <array>
#include <cstdint>

#include "base/tensor.h"

namespace so {

inline constexpr std::int64_t fp8_block = 128;

// Element (r, k) of a matrix [R, K] is the value of codes[r, k] times its block's scale, a power of two. A product adds
// up over k.
struct Fp8Matrix {
  enum class Blocks : std::uint8_t {
    rows,     // 1 x 128: of activations and of gradients
    squares,  // 128 x 128, R a multiple of 128: of weights, and of activations in the gradient of a weight
  };
  Blocks blocks = Blocks::rows;
  Tensor codes;   // u8 [R, width(K)]; codes behind K are 0
  Tensor scales;  // f32, scale_shape(); what is in it beyond the matrix's blocks is not read

  explicit operator bool() const { return static_cast<bool>(codes); }
  // Codes of a row: K, rounded up to whole blocks.
  static std::int64_t width(std::int64_t k) { return (k + fp8_block - 1) / fp8_block * fp8_block; }
  // Rows: the scale of block b of row r at [b, r]. Squares: that of rows 128 a... and block b at [a, b]. What lies side
  // by side is rounded up to four, as cuBLASLt has it.
  static std::array<std::int64_t, 2> scale_shape(Blocks blocks, std::int64_t rows, std::int64_t k) {
    const auto to_four = [](std::int64_t n) { return (n + 3) / 4 * 4; };
    const std::int64_t across = width(k) / fp8_block;
    if (blocks == Blocks::rows) return {across, to_four(rows)};
    return {rows / fp8_block, to_four(across)};
  }
};

}  // namespace so
