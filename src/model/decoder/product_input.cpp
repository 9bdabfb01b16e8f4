#include "model/decoder/product_input.h"

#include "ops/fp8_layout.h"

namespace so {

ProductInput ProductInput::acquire(Arena& arena, const char* name, DType t, std::int64_t n, std::int64_t k,
                                   bool in_codes) {
  ProductInput input;
  if (in_codes)
    input.codes = acquire_fp8(arena, Fp8Matrix::Blocks::rows, n, k);
  else
    input.values = arena.acquire(name, t, {n, k});
  return input;
}

Fp8Matrix acquire_fp8(Arena& arena, Fp8Matrix::Blocks blocks, std::int64_t rows, std::int64_t k) {
  return make_fp8_matrix(blocks, rows, k, [&](DType dtype, std::int64_t across, std::int64_t along) {
    return arena.acquire(dtype == DType::u8 ? "codes in FP8" : "scales of FP8", dtype, {across, along});
  });
}

}  // namespace so
