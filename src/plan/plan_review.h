// While a run goes on: what its steps measure beside what its plan counted on, and what another plan would make of it.
// Says so and changes nothing: what the host does with its buckets is chosen for every step from what is measured
// anyway (offload/schedule/update_policy.h), and who owns which state is fixed while a run lasts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plan/placement/placement.h"
#include "plan/training_plan.h"

namespace so {

// The measurements of the steps since the last look.
struct MeasuredSteps {
  std::int64_t count = 0;
  double step_seconds = 0;    // as plan/step_figures.h counts, like the waits
  double pass_seconds = 0;    // of the device: forward and backward of a step, without waits and its own update
  double update_seconds = 0;  // of the host's AdamW, an element, beside the device's work; 0: none was measured
  double host_wait_seconds = 0, link_wait_seconds = 0;  // of the device, a step
  // Numbers of the host's buckets, a step: updated ahead of the verdict, and after it.
  double speculated = 0, previewed = 0, left = 0;
};

class PlanReview {
 public:
  // The request to a plan, in the terms of PlacementOptions.
  struct Wanted {
    std::optional<double> ratio;
    std::optional<int> streamed_layers;
    std::optional<int> gathered_layers;
  };
  // A plan of the same run made from other rates; throws Error if none fits.
  using Replan = std::function<TrainingPlan(const MachineRates& rates, const Wanted& wanted)>;

  // For runs with an estimate. `plan` and `layout` must outlive it.
  PlanReview(const TrainingPlan& plan, const ParameterLayout& layout, Replan replan);

  static constexpr std::int64_t steps_between = 8;
  // Lines for the log: none unless a rate differs by more than a twentieth from what was said of it last, at first by
  // the plan. Planning anew, where it says something, takes as long as planning did, up to a second.
  std::vector<std::string> look(const MeasuredSteps& measured);

 private:
  struct Rates {
    double pass_seconds = 0, update_seconds = 0;
  };
  std::string advice(const Rates& measured) const;

  const TrainingPlan& plan_;
  const ParameterLayout& layout_;
  Replan replan_;
  Rates planned_, said_;
};

}  // namespace so
