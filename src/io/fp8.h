// FP8 weights (OCP 8-bit floating point, E4M3), as Ministral 3, DeepSeek and Qwen publish them: codes of a byte, and a
// number by which a whole matrix, or each block of it, is multiplied.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "io/byte_codes.h"

namespace so {

// The scales of a matrix [rows, columns].
struct Fp8Scales {
  std::int64_t columns = 0;
  std::int64_t block_rows = 0, block_columns = 0;  // the last blocks of rows and columns may be smaller
  std::vector<float> values;                       // [blocks of rows, blocks of columns]
};

// Elements [begin, begin + codes.size()) of the matrix, in row-major order: each code's value times its scale, rounded
// to fp32, and from that to bf16 (nearest even). `wide` and `narrow`: each may be null. A code that is not a number
// gives NaN.
void dequantise_fp8(const Fp8Scales& scales, std::int64_t begin, std::span<const std::uint8_t> codes, float* wide,
                    bf16* narrow);

class Fp8Codes final : public ByteCodes {
 public:
  explicit Fp8Codes(Fp8Scales scales) : scales_(std::move(scales)) {}
  void decode(std::int64_t begin, std::span<const std::uint8_t> codes, float* wide, bf16* narrow) const override {
    dequantise_fp8(scales_, begin, codes, wide, narrow);
  }

 private:
  const Fp8Scales scales_;
};

}  // namespace so
