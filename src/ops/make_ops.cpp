#include "ops/cpu/cpu_ops.h"
#include "ops/null/null_ops.h"

namespace so {

std::unique_ptr<Ops> make_ops(Device& device) {
  if (!device.backed()) return std::make_unique<NullOps>();
  SO_CHECK(device.kind() == DeviceKind::cpu, "no ops for device {}", device.name());
  return std::make_unique<CpuOps>();
}

}  // namespace so
