#include "ops/cpu/tile_product.h"

#include "base/error.h"
#include "ops/cpu/simd_sgemm.h"

namespace so::products {

bool has_bf16() { return false; }

void sgemm(bool a_transposed, bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
           const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride, float beta, float* c,
           std::int64_t c_stride) {
  simd_sgemm(a_transposed, b_transposed, m, n, k, alpha, a, a_stride, b, b_stride, beta, c, c_stride);
}

void bf16_gemm(bool, bool, std::int64_t, std::int64_t, std::int64_t, const bf16*, std::int64_t, const bf16*,
               std::int64_t, float*, std::int64_t) {
  SO_BUG("this build has no bf16 products");
}

}  // namespace so::products
