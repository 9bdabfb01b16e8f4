// The linear layer's products as Gemms, and the bias gradient; used by the ops and, directly, by their tests.
#pragma once

#include "base/tensor.h"
#include "ops/cpu/gemm.h"
#include "ops/ops.h"

namespace so {

class ThreadPool;

// Check the shapes and dtypes that Ops states (Bug if wrong) and describe the product.
Gemm linear_gemm(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias, bool add);
Gemm linear_grad_input_gemm(const Tensor& dx, const Tensor& dy, const Tensor& w, bool add);
Gemm linear_grad_weight_gemm(const Tensor& dw, const Tensor& dy, const Tensor& x, bool add);

// sums[c] = sum over rows of rows[r, c] (+ sums[c]).
void column_sums(ThreadPool& pool, Tensor sums, Tensor rows, Accumulate mode);

}  // namespace so
