// A run's steps show whether the rates hold that its plan was made from. AdamW beside the device's work is slower or
// quicker than when it was measured alone: other processes, pages and clocks decide (docs/performance/planning.md).
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>

#include "plan/machine/rate_cache.h"
#include "plan/training_plan.h"

namespace so {

// A rate that differs by less says little, since machines are not steadier.
inline constexpr double rate_tolerance = 0.05;

// The same rates with AdamW on the host, and the host's memory under it, so many times as fast.
MachineRates with_host_change(MachineRates rates, double change);

// Returns the rates with which the plan would have expected `measured`; none if nothing was measured, or if the plan
// was within rate_tolerance. The link is only ever found slower, and only by what the host memory that it shares with
// AdamW does not explain. If the device updates some host-owned state over the link, the rates are found by simulating
// plan.run.
std::optional<LearnedRates> learn_rates(const TrainingPlan& plan, const StepTimes& measured, std::int64_t steps);

// For people: "AdamW on the host ran at 112 GB/s, planned 138 (-18.8%); host memory 142 GB/s, planned 175".
std::string describe(const LearnedRates& learned, const MachineRates& planned);

// Keeps what was learned beside the measured rates of this machine, so that the next plan is made from it, and returns
// what to say of it.
std::string keep_learned(const LearnedRates& learned, const TrainingPlan& plan, const RateCache& cache,
                         const RateKey& key, std::time_t now);

}  // namespace so
