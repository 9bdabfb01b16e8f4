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
#include "plan/placement/search.h"

namespace so {

struct ChosenPlan : Choice {
  StepEstimate estimate;
  double score = 0;                                 // Judge::score()
  SimulatedRun run;                                 // which was estimated
  std::string why_split, why_spare, why_residency;  // for the log; each says the choice and its reason; or empty
  std::vector<Candidate> considered;
};

// Says that nothing fits: which memory is short and by how much, what helps, and the splits that come nearest.
class NothingFits : public Error {
 public:
  NothingFits(std::string what_is_short, const std::string& what_helps, const Choice& comes_near)
      : Error(what_is_short + "; " + what_helps),
        brief(std::move(what_is_short)),
        advice(what_helps),
        nearest(comes_near) {}
  std::string brief, advice;
  Choice nearest;
};

// The plan with the best score among those that fit (plan/placement/judge.h). For each split the layers keep the most
// that fits, and there are as many places for new state as the host can fill during backward, or as fit. Throws
// NothingFits.
ChosenPlan choose_placement(const PlacementInputs& inputs, const Judge& judge = {});

// The best of a split, from the candidates of it that were `considered`, or all; none if nothing fits.
std::optional<Choice> best_of_split(const PlacementInputs& inputs, int device_units,
                                    const std::vector<Candidate>& considered, const Judge& judge = {});

// Says where weights and gradients are, but for numbers of units, in words; and who owns how much of the state.
std::string describe_residency(const Counts& counts);
std::string describe_split(const PlacementInputs& inputs, int device_units);

}  // namespace so
