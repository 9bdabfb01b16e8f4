#include "ops/cpu/cpu_ops.h"
#include "ops/cuda/cuda.h"
#include "ops/dry/dry_ops.h"

namespace so {

std::unique_ptr<Ops> make_ops(Device& device) {
  if (!device.backed()) return std::make_unique<DryOps>(device);
  switch (device.kind()) {
    case DeviceKind::cpu:
      return std::make_unique<CpuOps>();
    case DeviceKind::cuda:
      return make_cuda_ops(device);
  }
  SO_CHECK(false, "no ops for device {}", device.name());
}

}  // namespace so
