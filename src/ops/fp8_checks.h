// What Ops states of matrices in FP8, checked for every backend when an op is enqueued.
#pragma once

#include "ops/ops.h"

namespace so {

void expect_fp8_quantise(const Fp8Matrix& rows, const Fp8Matrix& columns, const Tensor& x);
void expect_fp8_quantise_norm(const Fp8Matrix& columns, const Tensor& x, const Tensor& inv_rms, const Tensor& weight);
void expect_fp8_swiglu_grad(const Ops::Fp8SwigluGrad& g);
// With `rows`, which may be empty, of what they make.
void expect_add_rms_norm(const Tensor& out, const Tensor& sum, const Tensor& inv_rms, const Tensor& x,
                         const Tensor& delta, const Tensor& weight, const Fp8Matrix& rows);
void expect_swiglu(const Tensor& out, const Tensor& gate_up, MlpActivation activation, const Fp8Matrix& rows);
void expect_fp8_product(const Tensor& out, const Fp8Matrix& a, const Fp8Matrix& b, const Tensor& bias);

}  // namespace so
