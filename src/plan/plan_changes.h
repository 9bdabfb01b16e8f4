// Finds what would make a run fit that does not: the smallest changes of the request, each found by planning again with
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/options.h"
#include "plan/training_plan.h"

namespace so {

// What is asked for, or what might be instead.
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
  std::function<bool(const PlanKnobs&)> fits;          // the same answer, sooner; none: by plan()
  const OptionRows* rows = nullptr;                    // what the command has no option for is not proposed
  bool results_fixed = false;                          // a run goes on: what changes its results is not proposed
  MemoryCaps there;                                    // of each memory, what the plan had; own: none on the CPU
  MemoryCaps askable;  // what --device_memory and --host_memory may ask for; beyond it another machine is needed
  double seconds = 2;  // for the search, about
};
// plan, fits, there and askable of a run; all of it is copied but what its references refer to.
PlanQuestion make_question(const PlannedRun& run, const RunRequest& asked, const OptionRows& rows);

struct PlanChange {
  // As the command line has them; none: what is missing is no option.
  std::vector<std::pair<std::string, std::string>> options;
  std::string text;
};

// The smallest change of each kind, those first that change no result. Where no change of one kind helps but more
// memory, changes of several kinds together.
std::vector<PlanChange> find_changes(const PlanQuestion& question);

// An Error with what would help. Its message names the first of them; table() is for the log.
class PlanRefusal : public Error {
 public:
  PlanRefusal(const MemoryRefusal& refusal, std::vector<PlanChange> changes);
  const std::vector<PlanChange>& changes() const { return changes_; }

 private:
  std::vector<PlanChange> changes_;
};

// Refuses a question that does not fit: logs the memory needed by name, what there is and what would help, and throws.
[[noreturn]] void refuse(const PlanQuestion& question, const MemoryRefusal& refusal);
// plan(asked), or refuse().
TrainingPlan plan_or_refuse(const PlanQuestion& question);

// `machine` as if it had what the knobs say.
PlanningMachine with_memory(PlanningMachine machine, const MemoryCaps& memory);

}  // namespace so
