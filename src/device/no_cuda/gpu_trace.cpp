// Not reached: without the CUDA backend there is no GPU to trace.
#include "device/gpu_trace.h"

namespace so {

std::unique_ptr<GpuTrace> start_gpu_trace(std::string& remark) {
  remark = "GPU activities are not recorded: this build has no CUDA backend";
  return nullptr;
}

}  // namespace so
