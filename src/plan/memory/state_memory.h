// The memory of each kind that a run takes without its activations, found by running the real acquire and release code
// on a dry device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "device/backend.h"
#include "model/spec.h"
#include "offload/engine.h"
#include "plan/machine/planning_machine.h"
#include "plan/memory/memory_plan.h"
#include "plan/memory/training_shape.h"

namespace so {

// Where the weights come from, which decides about what their loading takes.
enum class WeightOrigin : std::uint8_t { files, random };

// All that the run allocates but the activations.
struct RunState {
  MemoryPlan memory;
  std::int64_t host_buckets = 0;
};
RunState plan_state(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                    const TrainingShape& shape, const EngineSettings& settings, WeightOrigin origin);

// The memory of weights if `count` units stream, without the inner units of the device, whose weights may be transient.
struct StreamedWeights {
  std::size_t device_bytes = 0, host_bytes = 0;
};
StreamedWeights streamed_weights(const ParameterLayout& layout, int device_units, int count, DType dtype);

// The least that weights, gradients and one of `ranks` slices of the optimizer state take in these formats. A lower
// bound; the plan proper is exact.
MemoryPlan least_memory(const ParameterLayout& layout, const PlanningMachine& machine, const NumberFormats& formats,
                        std::optional<int> device_units, int ranks);

// Books what the libraries behind a device take beside what is allocated through it.
void add_libraries(MemoryPlan& plan, const Backend& backend, int host_threads);

}  // namespace so
