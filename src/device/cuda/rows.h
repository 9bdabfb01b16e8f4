// These gather rows of a table by their numbers, and scatter them.
#pragma once

#include <cuda_runtime_api.h>

#include "base/tensor.h"

namespace so {

// out[n] = in[rows[n]].  out T [N, H], in T [V, H], f32 or bf16, rows i32 [N] in [0, V).
void take_rows(cudaStream_t stream, Tensor out, Tensor in, Tensor rows);
// out[rows[n]] = in[n], rows distinct; the others stay.  out T [V, H], in T [N, H].
void scatter_rows(cudaStream_t stream, Tensor out, Tensor in, Tensor rows);

}  // namespace so
