// Random weights made on a device, for measuring.
#pragma once

#include <vector>

#include "model/spec.h"
#include "offload/memory/device_weights.h"
#include "offload/schedule/parameter_layout.h"
#include "ops/ops.h"

namespace so {

// Draws weights distributed as in model/initialize.h, but others, on the device. Waits.
void randomize(DeviceWeights& weights, const DecoderSpec& spec, const ParameterLayout& layout, Ops& ops,
               Stream& stream);

// All values of a parameter that is not drawn().
std::vector<float> undrawn_values(const DecoderSpec& spec, const Parameter& parameter);

}  // namespace so
