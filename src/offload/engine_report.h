// Reports the engine's work in a step, for the log.
#pragma once

#include <string>

#include "offload/engine.h"

namespace so {

// The difference of two readings.
EngineCounters since(const EngineCounters& now, const EngineCounters& before);

// One line: how the host went about its buckets, e.g. "buckets of AdamW on the host: before the gradient
// norm was known 40 in full, 12 weights only, ...". Empty if the host owns none.
std::string describe_schedule(const EngineCounters& counters);
// One line: seconds the device waited and for what, and seconds the host spent.
std::string describe_waits(const EngineCounters& counters);

// All seconds that the device waited.
double total(const WaitSeconds& waits);

}  // namespace so
