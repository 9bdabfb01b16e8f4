// The choice of who owns which optimizer state on a GPU, with what layers keep and the places for new state
// (plan/placement/placement.h): the inputs of that choice from a model and a machine, sizes from dry runs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

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
  const PlanningMachine& machine;  // has device memory of its own
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
  bool any() const { return any_placement_fits(inputs_); }
  // Chooses for `plan`: owners, places, residency, the expected step and its reasons. Throws MemoryRefusal.
  void choose();

 private:
  void set_bucket_of_ranks();
  void set_units();
  // Multiplies the units' work by what was measured of this model (PlanningMachine::unit_factors).
  void apply_unit_factors();
  void set_cast(PlacementInputs& inputs, CastSide side) const;
  void set_sizes();
  void set_budgets();
  void set_residencies();
  // The best placement, with updates over the link or without, as is set.
  ChosenPlan search();
  // The best placement; one whose residency `costs` something that is not simulated only if it gains more than that may
  // be, or nothing else fits.
  ChosenPlan unless_worth_it(bool (Residency::*costs)() const);
  // Whether all state may be pinned: a machine that counts what is pinned has no room for that.
  bool may_pin_state() const;
  // Whether those are worth a search.
  bool may_update_over_link() const;
  // Takes what `change` allows, which costs something that is not simulated, if a step gains enough by it.
  void take_if_worth_it(ChosenPlan& chosen, const std::function<void(bool allowed)>& change);
  // Instead of what is best on a slower host, takes what is best at the measured rates or on a quicker host, if the
  // mean of the three is less.
  void take_the_best_mean_of_hosts(ChosenPlan& chosen);
  std::vector<Keep> keep_of(std::int64_t index) const;
  std::size_t activation_bytes(std::int64_t index);
  std::vector<UnitPlacement> rows(int device_units, Residency residency) const;
  // The memory of a run without its activations.
  MemoryPlan state(int device_units, std::int64_t undo_buckets, Residency residency = {}) const;
  StateMemory state_memory(int device_units, Residency residency);
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
  std::map<std::tuple<int, bool, bool, bool, bool, bool, bool>, StateMemory> states_;
  PlacementInputs inputs_;
};

}  // namespace so
