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
#include "options/run_request.h"
#include "plan/activation_plan.h"
#include "plan/alternatives.h"
#include "plan/machine/planning_machine.h"
#include "plan/memory_plan.h"

namespace so {

// The units that the request leaves to the device; none: to be chosen. On the CPU device, which has one kind of memory,
// nothing is to be chosen: the host has all.
std::optional<int> requested_device_units(const PlacementOptions& request, const ParameterLayout& layout,
                                          const Backend& backend);

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

// The least that weights, gradients and optimizer state take, with moments so kept. A lower bound; the plan proper is
// exact.
MemoryPlan least_memory(const ParameterLayout& layout, const PlanningMachine& machine, const EngineSettings& engine,
                        DType moments, std::optional<int> device_units);

// Returns what is short, by the config alone, for a model whose weights, gradients and optimizer state exceed the
// memory of the host or of the device: before its files are opened. Nothing if they fit.
std::optional<MemoryRefusal> state_misfit(const DecoderSpec& spec, const PlanningMachine& machine,
                                          const RunRequest& request);

// Books what the libraries behind a device take beside what is allocated through it.
void add_libraries(MemoryPlan& plan, const Backend& backend, int host_threads);

}  // namespace so
