#include "ops/cpu/cpu_ops.h"
#include "ops/cuda/cuda.h"
#include "ops/dry/dry_ops.h"
#include "ops/ops_memory.h"

namespace so {

std::unique_ptr<Ops> make_ops(Device& device) {
  const bool dry = !device.backed();
  switch (device.kind()) {
    case DeviceKind::cpu:
      if (dry) return std::make_unique<DryOps>(device, cpu_ops_memory());
      return std::make_unique<CpuOps>();
    case DeviceKind::cuda:
      if (dry) return std::make_unique<DryOps>(device, cuda_ops_memory());
      return make_cuda_ops(device);
  }
  SO_BUG("no ops for device {}", device.name());
}

}  // namespace so
