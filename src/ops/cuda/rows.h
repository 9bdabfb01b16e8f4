// Rows moved by index, whole.
#pragma once

#include <cuda_runtime_api.h>

#include "base/tensor.h"

namespace so {

// to[n] = from[rows[n]].  to T [N, H], from T [V, H], rows i32 [N] in [0, V).
void take_rows(cudaStream_t stream, Tensor to, Tensor from, Tensor rows);
// to[rows[n]] = from[n], rows distinct; the others stay.  to T [V, H], from T [N, H].
void scatter_rows(cudaStream_t stream, Tensor to, Tensor from, Tensor rows);

}  // namespace so
