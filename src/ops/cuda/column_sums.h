// The second half of sums over rows, one for each column (gradients of weights that every row shares): blocks of rows
// have left partial sums, which are added in a fixed order.
#pragma once

#include <cuda_runtime_api.h>

#include "base/tensor.h"
#include "ops/ops.h"

namespace so {

// out (f32 or bf16, `columns` elements) = or += the sum over `count` rows of partial [count, columns].
void finish_column_sums(cudaStream_t stream, Tensor out, const float* partial, std::int64_t count, std::int64_t columns,
                        Accumulate mode);

// Every row of out, [N, columns], = or += bias, [columns], each f32 or bf16: the counterpart.
void add_bias_rows(cudaStream_t stream, Tensor out, Tensor bias, Accumulate mode);

}  // namespace so
