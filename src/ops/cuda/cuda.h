// The CUDA backend's entrance; a build without it has one that refuses.
#pragma once

#include <memory>

#include "ops/ops.h"

namespace so {

std::unique_ptr<Ops> make_cuda_ops(Device& device);

}  // namespace so
