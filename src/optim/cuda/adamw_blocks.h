// AdamW on the GPU where moments are kept in 8 bits.
#pragma once

#include <cstdint>
#include <span>

#include "base/tensor.h"
#include "device/device.h"
#include "optim/device_adamw.h"

namespace so::adamw {

// DeviceAdamW::update() for them; `elements`: of gradient and weights.
void update_blocks(Stream& stream, const AdamWStep& step, std::span<const AdamWRun> runs, std::int64_t elements,
                   const Tensor& gradient, const AdamWState& state, const Tensor& weights);

}  // namespace so::adamw
