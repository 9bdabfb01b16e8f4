// A build without the CUDA backend answers so when it is asked for it.
#include "base/error.h"
#include "device/cuda_runtime.h"
#include "device/device.h"

namespace so {
namespace {
constexpr const char* reason =
    "this build has no CUDA backend; install the CUDA toolkit and cuDNN, run scripts/install_dependencies.sh and build "
    "again, or use --device cpu";
}

std::unique_ptr<Device> make_cuda_device(int) { fail("{}", reason); }
CudaSupport find_cuda(int) { return {false, reason}; }
int cuda_runtime_version() { return 0; }

}  // namespace so
