// The fp32 matrix product of one thread where there is no library for it, in the processor's vector instructions. Each
// element of C is a sum in an order that follows from the shape alone, in fused multiply-adds, so its bits are the same
// for every instruction set and vector length.
#pragma once

#include <cstdint>

namespace so {

// C = alpha op(A) op(B) + beta C, row-major, on the calling thread. op(A) is [m, k] and op(B) [k, n]; a transposed
// operand is stored [k, m] or [n, k]. Strides count elements from row to row as stored. With beta 0 C is not read. C
// overlaps neither operand.
void simd_sgemm(bool a_transposed, bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride, float beta, float* c,
                std::int64_t c_stride);

}  // namespace so
