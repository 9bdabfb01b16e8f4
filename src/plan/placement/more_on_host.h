// More optimizer state on the host than has to be there, where that saves the device the time of its own AdamW.
#pragma once

#include "plan/placement/placement.h"

namespace so {

// Returns `chosen`, or the quickest of a few placements with fewer device-owned units. The choice itself ignores the
// time of the device's own update (rank_of()), 1 to 3% of a step, because hiding an update on the host depends on more
// than was measured. So more state goes to the host only if the step gets shorter by more than counts as equal, and
// gets no longer on a host that is half as fast, or if all steps are clipped.
ChosenPlan with_more_on_host(const PlacementInputs& inputs, ChosenPlan chosen);

}  // namespace so
