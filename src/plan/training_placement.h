// The choice of who owns which optimizer state on a GPU, with what layers keep and the places for new state
// (plan/placement/placement.h): the inputs of that choice from a model and a machine, sizes from dry runs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "plan/memory/activation_memory.h"
#include "plan/memory/memory_room.h"
#include "plan/placement/placement.h"
#include "plan/training_plan.h"

namespace so {

// The plan as far as it needs no search: number formats, the schedule, the size of buckets.
// Throws Error if the request contradicts itself, or the model.
TrainingPlan begin_plan(const ParameterLayout& layout, const Backend& backend, const TrainingShape& shape,
                        const RunRequest& request);
// Throws Error where gradients in any order are allowed to a device that has no quicker one.
bool in_any_order(const Backend& backend, bool deterministic);

// The advice to a training run for which there is too little memory.
extern const MemoryAdvice training_advice;

// Why several ranks need the device memory that they do, where none of their weights may be gathered.
extern const std::string_view whole_on_each_rank;

struct PlacementQuestion {
  const DecoderSpec& spec;
  const ParameterLayout& layout;
  const PlanningMachine& machine;  // the device has processors of its own
  const RunRequest& request;
  WeightOrigin origin = WeightOrigin::files;
  MemoryAdvice advice;
};

class TrainingPlacement {
 public:
  // Takes shape, engine and decoder of `plan`, and sets the side of its casts. All must outlive this.
  TrainingPlacement(const PlacementQuestion& question, TrainingPlan& plan);
  TrainingPlacement(const TrainingPlacement&) = delete;
  TrainingPlacement& operator=(const TrainingPlacement&) = delete;

  // Whether choose() would return, sooner than by calling it.
  bool any();
  // Takes how much memory there is from the question's machine, which may have changed.
  void set_budgets();
  // Chooses for `plan`: owners, places, residency, the expected step and its reasons. Throws MemoryRefusal.
  void choose();

 private:
  void set_bucket_of_ranks();
  void set_units();
  // Multiplies the units' work by what was measured of this model (PlanningMachine::unit_factors).
  void apply_unit_factors();
  void set_cast(PlacementInputs& inputs, CastSide side) const;
  void set_sizes();
  void set_residencies();
  // Whether all state may be pinned, since it travels slowly otherwise.
  bool may_pin_state() const;
  std::vector<Keep> keep_of(std::int64_t index) const;
  std::size_t activation_bytes(std::int64_t index);
  void set_choice(Placement& placement, const Choice& choice) const;
  // The memory of a run without its activations.
  MemoryPlan state(const Choice& choice) const;
  StateMemory dry_run(const Choice& choice) const;
  // The same from a few dry runs, for the search.
  StateMemory state_memory(const Choice& choice);
  StateMemory state_of_split(const Choice& choice);
  // Whether a dry run takes no more than state_memory() says, which from then on says what the dry run took.
  bool is_as_summed(const Choice& choice);
  MemoryRefusal refusal(const NothingFits& nothing);
  void explain(const ChosenPlan& chosen);
  void say(const ChosenPlan& chosen);

  const PlacementQuestion q_;
  TrainingPlan& plan_;
  const MachineRates measured_;
  const std::vector<ActivationChoice> choices_;  // of what layers keep
  ActivationSizer sizer_;
  std::vector<std::optional<std::size_t>> sizes_;  // of activations, by choice, once asked for
  std::size_t loading_floor_ = 0;                  // activations may have what loading has given back
  std::size_t shared_by_places_ = 0;               // host memory that comes with the first place for new state
  std::map<Choice, StateMemory> states_;
  std::map<Choice, HeldMemory> held_;
  PlacementInputs inputs_;
};

}  // namespace so
