// Reports the engine's work in a step, for the log.
#pragma once

#include <string>

#include "offload/engine.h"
#include "offload/schedule/overlap.h"

namespace so {

// The difference of two readings.
EngineCounters since(const EngineCounters& now, const EngineCounters& before);

// One line: how the host went about its buckets, e.g. "buckets of AdamW on the host: before the gradient
// norm was known 40 in full, 12 weights only, ...". Empty if the host owns none.
std::string describe_schedule(const EngineCounters& counters);

// The parts of the time between the two readings whose difference is given.
StepOverlap overlap_of(const EngineCounters& difference);

// All seconds that the device waited.
double total(const WaitSeconds& waits);

}  // namespace so
