// A planned step of a run, for people and for programs.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/quantities.h"
#include "checkpoint/output_space.h"
#include "model/spec.h"
#include "offload/schedule/parameter_layout.h"
#include "options/option_groups.h"
#include "plan/machine/hardware.h"
#include "plan/machine/rank_hardware.h"
#include "plan/plan_change.h"
#include "plan/simulate/simulator.h"
#include "plan/training_plan.h"

namespace so {

struct Budget {
  std::size_t planned = 0, available = 0;
  double share() const { return static_cast<double>(planned) / static_cast<double>(available); }
  Budget times(int ranks) const {
    return {planned * static_cast<std::size_t>(ranks), available * static_cast<std::size_t>(ranks)};
  }
  std::string text() const {
    return fmt::format("{} of {} ({:.0f}%)", format_bytes(planned), format_bytes(available), 100 * share());
  }
  nlohmann::ordered_json to_json() const { return {{"planned_bytes", planned}, {"available_bytes", available}}; }
};

// The plan with other rates that the machine may have.
struct OtherPlan {
  OtherRates rates;
  TrainingPlan plan;
};

// The next larger model that is known by a name, on the same machine.
struct LargerModel {
  std::string name;
  std::int64_t parameters = 0;
  std::optional<double> tokens_per_second;  // as the model itself is asked for; none: it does not fit so
  std::vector<PlanChange> changes;          // each of which makes it fit then, if any does
};

// The plan, and what follows from it. Memory, tokens and FLOPs are those of one rank.
struct PlannedStep {
  double tokens_per_second() const { return tokens / plan.estimate->seconds(); }
  double model_tflops() const { return flops / plan.estimate->seconds() / 1e12; }
  double reference_tflops() const { return reference / plan.estimate->seconds() / 1e12; }

  const StepOptions& options;
  const std::string& origin;  // of the model
  const DecoderSpec& spec;
  const ParameterLayout& layout;
  const HardwareProfile& hardware;
  TrainingPlan plan;
  SimulatedTimeline timeline;
  double tokens = 0, flops = 0, reference = 0;  // of a step; FLOPs of the model, and by the reference count
  double host_share = 0;
  Budget device, host;
  SavedBytes disk;
  RankHosts ranks;
  std::vector<OtherPlan> others;
  std::vector<PlanChange> quicker;
  std::optional<LargerModel> larger;
};

// The answer, in about ten lines: whether it fits, how long a step takes, how full each memory is, what would be
// quicker, and what the larger model needs. Here and below lines have at most `columns`.
std::string plan_answer(const PlannedStep& step, std::size_t columns);

// All the rest: memory by name, the reasons, a sketch of the step, and what bounds it.
std::string plan_details(const PlannedStep& step, std::size_t columns);

// The tables of what --explain asked for.
std::string plan_alternatives(const PlannedStep& step, std::size_t columns);

nlohmann::ordered_json to_json(const PlannedStep& step);

}  // namespace so
