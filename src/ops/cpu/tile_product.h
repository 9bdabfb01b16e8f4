// Matrix products of one thread, which the products of gemm.h and attention are cut into. On x86-64 they are oneDNN's
// (onednn/), elsewhere simd_sgemm.h's (no_onednn/): Debian 12's oneDNN 2.6 multiplies without vector
// instructions on 64-bit Arm.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace so::products {

// C = alpha op(A) op(B) + beta C, row-major fp32, on the calling thread. With beta 0 C is not read.
void sgemm(bool a_transposed, bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
           const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride, float beta, float* c,
           std::int64_t c_stride);

// C = op(A) op(B), bf16 in, fp32 sums and result, on the calling thread. Call only where has_bf16().
void bf16_gemm(bool a_transposed, bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, const bf16* a,
               std::int64_t a_stride, const bf16* b, std::int64_t b_stride, float* c, std::int64_t c_stride);

// Does this CPU multiply bf16 by itself (AVX512_BF16, AMX), and is there a library that makes it?
bool has_bf16();

}  // namespace so::products
