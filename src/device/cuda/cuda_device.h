// The CUDA device's own face, for ops/cuda and optim/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include "device/device.h"

namespace so {

struct CudaProperties {
  int index = 0;
  int multiprocessors = 0;
  int capability = 0;  // 10 * major + minor
  std::size_t l2_bytes = 0;
};

// Of the device that owns this stream; Bug if it belongs to another backend.
cudaStream_t cuda_stream(Stream& stream);
const CudaProperties& cuda_properties(Device& device);

}  // namespace so
