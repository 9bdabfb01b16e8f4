// How one placement is preferred to another: the planner's margins, each with its evidence.
#pragma once

#include <array>
#include <cstddef>

#include "plan/placement/step_estimate.h"

namespace so {

struct Judge {
  // A placement's score is the mean of its ranks (rank_of()) on hosts whose AdamW and memory have these parts of their
  // measured rates. During runs on hosts that others use too, AdamW took 9 to 45% longer than when it was measured, and
  // others may as well have slowed the host down while it was measured (docs/performance/planning.md).
  static constexpr double slower_host = 0.85, quicker_host = 1 / slower_host;
  static constexpr std::array hosts{slower_host, 1.0, quicker_host};
  // Scores within this part of each other count as equal, and the most on the device is taken: whether an update stays
  // hidden on the host depends on more than was measured.
  double equal_share = 0.001;
  // A choice has to gain more than this part of a step for each of its costs that is not simulated. Pinning all state
  // takes seconds when a run begins; masters and sums of gradients that travel in every micro-batch make the step
  // depend on the link.
  double worth_it = 0.005;
  // `first_steps` of each placement are played on the slowest of the hosts, where placements differ the most. Then the
  // best, as many as `settled`, are played on all hosts until their steps repeat.
  int first_steps = 3;
  std::size_t settled = 3;

  // The factor of a score for such costs.
  double price(const PlacementInputs& inputs, const Choice& choice) const;
  // A placement's score; on the slowest host, that of its first steps, and one that no schedule comes below.
  double score(const PlacementInputs& inputs, const Choice& choice) const;
  double first_score(const PlacementInputs& inputs, const Choice& choice) const;
  double least_score(const PlacementInputs& inputs, const Choice& choice) const;
};

}  // namespace so
