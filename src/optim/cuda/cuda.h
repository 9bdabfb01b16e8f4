// The CUDA implementation's entrance; a build without it has one that refuses.
#pragma once

#include <memory>

#include "optim/device_adamw.h"

namespace so {

std::unique_ptr<DeviceAdamW> make_cuda_adamw(Device& device);

}  // namespace so
