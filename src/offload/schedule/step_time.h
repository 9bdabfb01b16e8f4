// How long a step takes when the host treats its buckets by a given choice: the rules of host_schedule.h, played
// against measured times.
#pragma once

#include "offload/schedule/update_policy.h"

namespace so {

// The verdict that every step is assumed to get.
enum class Verdicts : std::uint8_t { stand, clip };

// Seconds from verdict to verdict once steps repeat. `facts` must have been measured: update_seconds, forward_seconds
// and backward_seconds above 0. The link is taken to keep up, and the device to go through its passes evenly by
// elements.
double step_time(const UpdateFacts& facts, const UpdateChoice& choice, Verdicts verdicts);

}  // namespace so
