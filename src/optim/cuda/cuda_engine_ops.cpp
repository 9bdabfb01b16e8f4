#include "optim/cuda/cuda_engine_ops.h"

#include "optim/cuda/cuda.h"

namespace so {

std::unique_ptr<EngineOps> make_cuda_engine_ops(Device&) { return std::make_unique<CudaEngineOps>(); }

}  // namespace so
