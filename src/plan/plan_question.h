// A training run as a command asks for it, and the one place that answers whether it fits the machine.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/option_table.h"
#include "options/run_request.h"
#include "plan/machine/planning_machine.h"
#include "plan/training_plan.h"

namespace so {

// A request, or a changed one that might be made instead.
struct PlanKnobs : RunRequest {
  MemoryCaps memory;                       // what the run may have, even beyond the machine's own; none: as it is
  std::optional<std::string> freeze = {};  // patterns, for a model of which nothing is frozen; none: as its layout says
};

// A run of a model, but for what the knobs say.
struct PlannedRun {
  const DecoderSpec& spec;
  const ParameterLayout& layout;
  const PlanningMachine& machine;
  WeightOrigin origin = WeightOrigin::files;
  std::function<TrainingShape(const PlanKnobs&)> shape;
};

// A model that is known by a name, and the rate of the plan for it; none: there was no time for that.
struct SmallerModel {
  std::string name;
  std::optional<double> tokens_per_second;
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
  MemoryCaps askable;       // what --device_memory and --host_memory may ask for; beyond it more has to be bought
  bool buys_memory = true;  // whether more host memory than askable can be had: not where it is soldered
  // Patterns that --freeze may be given: of the embedding, then with one more of the first layers each. Empty: a part
  // of the model is frozen as it is, or learns at a rate of its own.
  std::vector<std::string> freezable;
  int host_ranks = 1;  // ranks of a host, which share its memory: the request speaks of a host, the plan of a rank
  // The largest model that is known by a name and fits as it is asked for, where a model may be chosen; null: it may
  // not. Asked last; `in_time` says whether to go on.
  std::function<std::optional<SmallerModel>(const std::function<bool()>& in_time)> smaller_model;
  double seconds = 2;  // of the thread, for the search and the rates of what it finds, about
};
// All but results_fixed, host_ranks, smaller_model and seconds, of a run; all of it is copied but what its references
// refer to. Who has a run asks this; a table of bytes is judged by plan/memory/memory_room.h alone.
PlanQuestion make_question(const PlannedRun& run, const RunRequest& asked, const OptionRows& rows);

// Patterns of --freeze for the embedding and the first `layers` layers, as the model's parameters are named.
std::string first_layers_pattern(const ParameterLayout& layout, int layers);

// `machine` as if it had what the knobs say.
PlanningMachine with_memory(PlanningMachine machine, const MemoryCaps& memory);

}  // namespace so
