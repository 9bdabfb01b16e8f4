// A build without the CUDA backend answers so when it is asked for it.
#include "base/build_facts.h"
#include "base/error.h"
#include "device/cuda_runtime.h"
#include "device/device.h"

namespace so {
namespace {
std::string why_no_cuda() {
  return fmt::format(
      "this build has no CUDA backend ({}); install the CUDA toolkit and cuDNN, run scripts/install_dependencies.sh and "
      "build again, or use --device cpu",
      why_built_without_cuda());
}
}  // namespace

std::unique_ptr<Device> make_cuda_device(int) { fail("{}", why_no_cuda()); }
CudaSupport find_cuda(int) { return {false, why_no_cuda()}; }
int cuda_runtime_version() { return 0; }

}  // namespace so
