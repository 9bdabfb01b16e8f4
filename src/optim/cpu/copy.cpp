// Copies that are asked for together.
#include "optim/cpu/cpu_engine_ops.h"

namespace so {

void CpuEngineOps::copy(Stream& stream, std::span<const DeviceCopy> copies) {
  for (const auto& [to, from, bytes] : copies) stream.copy(to, from, bytes);
}

}  // namespace so
