// Products of the rows of experts on any GPU and of any size, by kernels of ours on the CUDA cores: where the matrix
// units of grouped_gemm.h do not serve. Operands f32 or bf16, sums fp32 in order of what is summed over, one rounding.
#pragma once

#include <cuda_runtime_api.h>

#include "base/tensor.h"
#include "ops/ops.h"

namespace so {

// out [R, columns] = a [R, inner] times the expert's matrix of w: [E, columns, inner] if transposed, else [E, inner,
// columns].
void plain_expert_rows(cudaStream_t stream, Tensor out, Tensor a, Tensor w, bool transposed, Tensor offsets);
// out [E, rows, columns] = a^T b (+ out) over the expert's rows of a [R, rows] and b [R, columns].
void plain_expert_weights(cudaStream_t stream, Tensor out, Tensor a, Tensor b, Tensor offsets, Accumulate mode);
// The matrices of experts without rows become 0. out [E, ., .]
void clear_without_rows(cudaStream_t stream, Tensor out, Tensor offsets);

}  // namespace so
