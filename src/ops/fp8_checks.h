// What Ops states of matrices in FP8, checked for every backend when an op is enqueued.
#pragma once

#include "ops/ops.h"

namespace so {

void expect_fp8_quantise(const Fp8Matrix& rows, const Fp8Matrix& columns, const Tensor& x);
void expect_fp8_product(const Tensor& out, const Fp8Matrix& a, const Fp8Matrix& b, const Tensor& bias);

}  // namespace so
