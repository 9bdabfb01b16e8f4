// AdamW by the device over a range of the parameters' elements, each with its own update.
#pragma once

#include "base/tensor.h"
#include "device/device.h"
#include "offload/adamw_steps.h"
#include "offload/schedule/parameter_layout.h"
#include "optim/device_adamw.h"

namespace so {

// Enqueues the update of the trained parameters in `range`, to whose first element the arrays' first ones belong: one
// DeviceAdamW::update() for each of the different updates that they have, over all its runs. Parameters that stay as
// they are are not touched. Nothing for an empty range.
void update_range(DeviceAdamW& adamw, Stream& stream, const AdamWSteps& steps, const ParameterLayout& layout,
                  Range range, Tensor gradient, AdamWState state, Tensor weights);

}  // namespace so
