// A simulated step for people: a sketch for the terminal, and a trace to lay beside a real one.
#pragma once

#include <string>

#include "device/trace.h"
#include "plan/simulate/simulator.h"

namespace so {

// Four lanes, two more of several ranks, `width` slices of equal length, and lines that say what the characters mean. A
// slice shows what takes the most of it.
//
//   GPU | uffffffffffffff.ffffffffffffffffffffffffffffbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbv |
//   D2H |                                            ggggg ggggg gggggg ggg ggg ggg ggg ggg ggg ggg ggg ggg  |
std::string sketch(const SimulatedTimeline& timeline, int width = 100);

// The same lanes as those of a trace of the engine (device/trace.h): its streams and its thread, by the same names.
Trace to_trace(const SimulatedTimeline& timeline);

}  // namespace so
