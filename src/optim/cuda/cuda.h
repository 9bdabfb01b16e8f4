// The CUDA implementations' entrance; a build without them has one that refuses.
#pragma once

#include <memory>

#include "optim/device_adamw.h"
#include "optim/engine_ops.h"

namespace so {

std::unique_ptr<DeviceAdamW> make_cuda_adamw(Device& device);
std::unique_ptr<EngineOps> make_cuda_engine_ops(Device& device);

}  // namespace so
