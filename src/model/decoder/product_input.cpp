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
  const auto [across, along] = Fp8Matrix::scale_shape(blocks, rows, k);
  return {blocks, arena.acquire("codes in FP8", DType::u8, {fp8_stored_rows(rows), Fp8Matrix::width(k)}),
          arena.acquire("scales of FP8", DType::f32, {across, along})};
}

}  // namespace so
