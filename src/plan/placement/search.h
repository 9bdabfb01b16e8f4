// The search for the best placement: all that may be chosen, what each takes of both memories, and the best of those
// that fit, by simulating the steps of the few that could be it.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

#include "plan/placement/judge.h"
#include "plan/placement/step_estimate.h"

namespace so {

struct Candidate {
  Choice choice;  // the layers keep the most that fits
  bool fits = false;
  // How much the device lacks for the least that layers can keep, and the host for the state.
  std::size_t device_short = std::numeric_limits<std::size_t>::max(), host_short = 0;
  double least = 0;             // Judge::least_score()
  std::optional<double> first;  // Judge::first_score(), if it could be the best
  std::optional<double> score;  // if it was one of the best by that
};

// Appends all choices with a split, those first that keep the most.
void add_candidates(const PlacementInputs& inputs, int device_units, const Judge& judge, std::vector<Candidate>& all);

// Returns the best of those that fit; null if none does. Of equal ones, the one with the most on the device.
Candidate* best_of(const PlacementInputs& inputs, std::vector<Candidate>& all, const Judge& judge);

// Returns something that fits, if anything does, in a few looks: the more the device owns, the more memory of it and
// the less of the host a placement takes.
std::optional<Choice> fitting_choice(const PlacementInputs& inputs);

}  // namespace so
