// Every CUDA call goes through here: a failure is an Error that names the call.
#pragma once

#include <cuda_runtime_api.h>

namespace so {

// Throws Error with CUDA's own words and `call`. An error of earlier asynchronous work may surface in any call.
void cuda_check(cudaError_t status, const char* call);

}  // namespace so

#define SO_CUDA(call) ::so::cuda_check((call), #call)
// Call it after a kernel launch.
#define SO_CUDA_LAUNCHED(kernel) ::so::cuda_check(cudaPeekAtLastError(), kernel)
