// Internal to the decoder: what a product with a weight reads.
#pragma once

#include <cstdint>

#include "base/tensor.h"
#include "device/arena.h"
#include "ops/fp8_matrix.h"
#include "ops/operands.h"

namespace so {

// A matrix [n, K]: in the activations' format, or where only a product in FP8 reads it, in codes alone. Layers keep no
// codes.
struct ProductInput {
  Tensor values;    // T
  Fp8Matrix codes;  // in blocks of rows
  // Says what the matrix is the norm of, if it is one: the weight's gradient makes it again of that where there are no
  // values.
  struct Norm {
    Tensor x, inv_rms, weight;  // as add_rms_norm() has them, x with what was added to it
    NormTerms terms{0};
  } norm;

  ProductInput() = default;
  ProductInput(Tensor values_) : values(values_) {}
  // Memory for either, which lasts as long as the caller's scope of the arena.
  static ProductInput acquire(Arena& arena, const char* name, DType t, std::int64_t n, std::int64_t k, bool in_codes);

  explicit operator bool() const { return values || codes; }
};

// Memory for a matrix in FP8 [rows, k], which lasts as long as the caller's scope of the arena.
Fp8Matrix acquire_fp8(Arena& arena, Fp8Matrix::Blocks blocks, std::int64_t rows, std::int64_t k);

}  // namespace so
