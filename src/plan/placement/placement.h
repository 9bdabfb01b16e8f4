// Which optimizer state the device owns, what the layers keep for backward, and how many places for new state beside
// the old the host has: chosen together from measured rates and the memory that is left, by simulating the step of each
// choice that could be the best. No device, no clock. Sizes are the caller's, who learns them from dry runs.
//
// The choices compete. State on the device needs no link and no host, but takes memory that activations would use, so
// that more is computed again. State on the host costs nothing while the GPU computes anyway, and time where it does
// not.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "plan/placement/step_estimate.h"

namespace so {

struct ChosenPlan {
  int device_units = 0;
  Residency residency;
  std::int64_t keep = 0;  // index of inputs.keeps
  std::int64_t undo_buckets = 0;
  StepEstimate estimate;
  double rank = 0;                                 // rank_of() its step at inputs.judged_at of the host's rates
  SimulatedRun run;                                // which was estimated
  std::string why_split, why_undo, why_residency;  // for the log; each says the choice and its reason; or empty
  std::int64_t considered = 0, simulated = 0;      // choices, and those of them whose step was simulated
};

// That nothing fits: what is short and by how much, what helps, and of the splits that come nearest one.
class NothingFits : public Error {
 public:
  NothingFits(std::string what_is_short, const std::string& what_helps, int units, Residency keeps)
      : Error(what_is_short + "; " + what_helps),
        brief(std::move(what_is_short)),
        advice(what_helps),
        device_units(units),
        residency(keeps) {}
  std::string brief, advice;
  int device_units;
  Residency residency;
};

// The plan that ranks best among those that fit; plans within a thousandth of a step count as equal, and of those the
// one with the most on the device is taken. For each split the layers keep the most that fits, and there are as many
// places for new state as the host can fill during backward, or as fit. Throws NothingFits.
ChosenPlan choose_placement(const PlacementInputs& inputs);
// Whether any plan fits, in a few looks: the more the device owns, the more memory of it and the less of the host a
// plan takes.
bool any_placement_fits(const PlacementInputs& inputs);

// Says who owns how much of the state, in words.
std::string describe_split(const PlacementInputs& inputs, int device_units);

}  // namespace so
