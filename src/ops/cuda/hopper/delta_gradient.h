// The last kernel of the gated delta rule's gradient in chunks (delta_gradient.cu). Included by .cu files only.
#pragma once

#include "ops/cuda/hopper/delta_chunks.h"

namespace so::hopper {

// Computes dq, dk, ddecay and drate from what the scans have left in the arrays.
void finish_gradients(cudaStream_t stream, const DeltaArguments& a, const DeltaArrays& arrays, const DeltaSize& size);

}  // namespace so::hopper
