// The memory of each kind that a run takes without its activations, found by running the real acquire and release code
// on a dry device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "plan/memory/memory_plan.h"

namespace so {

class ParameterLayout;
struct DecoderSpec;
struct EngineSettings;
struct NumberFormats;
struct PlanningMachine;
struct TrainingShape;

// Where the weights come from, which decides about what their loading takes.
enum class WeightOrigin : std::uint8_t { files, random };

// All that the run allocates but the activations.
struct RunState {
  MemoryPlan memory;
  std::int64_t spare_buckets = 0;  // that may be updated ahead of the verdict
};
RunState plan_state(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                    const TrainingShape& shape, const EngineSettings& settings, WeightOrigin origin);

// What of that depends on how many units stream or are gathered: the bytes of weights and gradients on the device, of
// the first of several ranks, whose slices are the longest; and of streamed weights in pinned memory.
struct HeldMemory {
  std::size_t device = 0, pinned = 0;
};
HeldMemory held_memory(const ParameterLayout& layout, const EngineSettings& settings);

// The least that weights, gradients and one of `ranks` slices of the optimizer state take in these formats, if up to
// `gathered` units may be gathered. A lower bound; the plan proper is exact.
MemoryPlan least_memory(const ParameterLayout& layout, const PlanningMachine& machine, const NumberFormats& formats,
                        std::optional<int> device_units, int ranks, int gathered);

// Books what the libraries behind a device take beside what is allocated through it, for a model that computes in
// `activations`. `nccl_users`: of ranks whose collectives are NCCL's, one for gradients and weights, and one for groups
// of ranks that split sequences.
void add_libraries(MemoryPlan& plan, const Backend& backend, DType activations, int host_threads, int nccl_users = 0);

}  // namespace so
