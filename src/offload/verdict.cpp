#include "offload/verdict.h"

#include <array>
#include <cmath>
#include <limits>

#include "optim/clip.h"

namespace so {

Verdict make_verdict(std::span<const GradStats> stats, Communicator& ranks, double max_norm) {
  Verdict verdict;
  std::array<double, 2> sums{0, 0};  // squares; parameters with a non-finite gradient
  for (std::size_t i = 0; i < stats.size(); ++i) {
    if (stats[i].non_finite != 0) {
      sums[1] += 1;
      verdict.non_finite_parameter = static_cast<int>(i);
    } else {
      sums[0] += stats[i].sum_of_squares;
    }
  }
  ranks.all_reduce_sum(sums);
  verdict.finite = sums[1] == 0;
  verdict.norm = verdict.finite ? std::sqrt(sums[0]) : std::numeric_limits<double>::quiet_NaN();
  verdict.clip = verdict.finite ? clip_coefficient(verdict.norm, max_norm) : 1.0f;
  return verdict;
}

}  // namespace so
