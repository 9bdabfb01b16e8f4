#include "base/error.h"
#include "optim/cuda/cuda.h"

namespace so {

// Not reached: without the backend no CUDA device can be made.
std::unique_ptr<DeviceAdamW> make_cuda_adamw(Device&) { SO_BUG("this build has no CUDA backend"); }
std::unique_ptr<EngineOps> make_cuda_engine_ops(Device&) { SO_BUG("this build has no CUDA backend"); }

}  // namespace so
