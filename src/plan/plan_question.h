// A training run as a command asks for it, and the one place that answers whether it fits the machine.
#pragma once

#include <functional>

#include "base/option_table.h"
#include "plan/training_plan.h"

namespace so {

// A request, or a changed one that might be made instead.
struct PlanKnobs : RunRequest {
  MemoryCaps memory;  // what the run may have, whether or not the machine has it; none: as the machine is
};

// A run of a model, but for what the knobs say.
struct PlannedRun {
  const DecoderSpec& spec;
  const ParameterLayout& layout;
  const PlanningMachine& machine;
  WeightOrigin origin = WeightOrigin::files;
  std::function<TrainingShape(const PlanKnobs&)> shape;
};

// A run as a command asks for it.
struct PlanQuestion {
  PlanKnobs asked;
  std::function<TrainingPlan(const PlanKnobs&)> plan;  // throws MemoryRefusal
  // Whether plan() would return with such memory, whatever the knobs say of it, and sooner; none: by calling it.
  std::function<std::function<bool(const MemoryCaps&)>(const PlanKnobs&)> fits;
  // Throws MemoryRefusal if weights, gradients and optimizer state alone, as they are asked for, exceed a memory.
  std::function<void()> require_state;
  const OptionRows* rows = nullptr;  // what the command has no option for is not proposed
  bool results_fixed = false;        // a run goes on: what changes its results is not proposed
  MemoryCaps there;                  // how much of each memory the plan had; device: none on the CPU
  MemoryCaps askable;   // what --device_memory and --host_memory may ask for; beyond it another machine is needed
  int host_ranks = 1;   // ranks of a host, which share its memory: the request speaks of a host, the plan of a rank
  double seconds = 10;  // for the search, about
};
// All but results_fixed, host_ranks and seconds, of a run; all of it is copied but what its references refer to. Who
// has a run asks this; a table of bytes is judged by plan/memory/memory_room.h alone.
PlanQuestion make_question(const PlannedRun& run, const RunRequest& asked, const OptionRows& rows);

// `machine` as if it had what the knobs say.
PlanningMachine with_memory(PlanningMachine machine, const MemoryCaps& memory);

}  // namespace so
