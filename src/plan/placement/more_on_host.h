// More optimizer state on the host than has to be there, where that saves the device the time of its own AdamW.
#pragma once

#include "plan/placement/placement.h"

namespace so {

// The placement, or the quickest of some with fewer units of the device's. The choice itself does not count the
// device's own update (rank_of()), a hundredth of a step or three, since hiding an update on the host depends on more
// than was measured. So more goes to the host only where no step is longer for it if the host is half as fast, nor if
// all steps are clipped, and if a step is shorter by more than counts as equal.
Placement with_more_on_host(const PlacementInputs& inputs, Placement chosen);

}  // namespace so
