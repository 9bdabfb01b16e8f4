// Measures on the GPU at hand how long a model's units take, since what its kernels reach depends on sizes that no list
// of rates covers: windows, wide heads, many small kernels.
#pragma once

#include <cstddef>
#include <vector>

#include "base/number_formats.h"
#include "model/spec.h"
#include "ops/runtime.h"
#include "plan/machine/planning_machine.h"
#include "plan/memory/training_shape.h"
#include "ranks/communicator.h"

namespace so {

// Returns, by unit, by what the seconds that a plan counts for forward and backward (plan/placement/unit_work.h) have
// to be multiplied, for PlanningMachine::unit_factors. Runs one layer of each kind that the model has, and its head,
// with random weights and the documents of a usual micro-batch, for two seconds, on a stream of its own. All
// memory is given back. Of several ranks all measure at once, and the slowest counts for all: a collective.
//
// Empty, so that a plan counts with the machine's rates alone: on the CPU device; where ranks split a sequence, since a
// unit then exchanges with others; and where these layers do not fit with all that they keep for backward.
std::vector<UnitFactor> measure_units(const PlanningMachine& machine, Runtime& runtime, const DecoderSpec& spec,
                                      const NumberFormats& formats, const TrainingShape& shape, bool any_order,
                                      Communicator& ranks);

}  // namespace so
