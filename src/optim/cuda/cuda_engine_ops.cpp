#include "optim/cuda/cuda_engine_ops.h"

#include "optim/cuda/cuda.h"

namespace so {

std::unique_ptr<EngineOps> make_cuda_engine_ops(Device& device) {
  device.make_current();
  CudaEngineOps::load_cast();
  CudaEngineOps::load_copy();
  CudaEngineOps::load_sum_of_ranks();
  return std::make_unique<CudaEngineOps>();
}

}  // namespace so
