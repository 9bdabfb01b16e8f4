#pragma once

#include <cuda_runtime_api.h>

namespace so {

// A kernel that does nothing. A copy behind it, in its stream, is not ready while the copy before it goes on; with an
// event in its place the driver still hands both to the copy engine at once.
void enqueue_empty_kernel(cudaStream_t stream);

}  // namespace so
