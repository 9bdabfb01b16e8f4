#include "base/error.h"
#include "ops/cuda/cuda.h"

namespace so {

// Not reached: without the backend no CUDA device can be made.
std::unique_ptr<Ops> make_cuda_ops(Device&) { SO_BUG("this build has no CUDA backend"); }

}  // namespace so
