// How the optimizer state is split between the device and the host: the device owns the first units' state, the host
// the others'.
#pragma once

#include "offload/schedule/parameter_layout.h"

namespace so {

// The share of the optimizer state (elements) that the host has.
double host_share(const ParameterLayout& layout, int device_units);
// The fewest device-owned units for which the host's share is at most `ratio`, in [0, 1].
int device_units_for_ratio(const ParameterLayout& layout, double ratio);

}  // namespace so
