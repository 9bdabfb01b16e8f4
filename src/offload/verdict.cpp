#include "offload/verdict.h"

#include <cmath>
#include <limits>
#include <vector>

#include "optim/clip.h"

namespace so {

Verdict make_verdict(std::span<const GradStats> stats, Communicator& ranks, double max_norm) {
  // Squares and counts of non-finite elements, by parameter. Counts are exact in a double.
  std::vector<double> sums;
  for (const GradStats& s : stats) {
    sums.push_back(s.sum_of_squares);
    sums.push_back(static_cast<double>(s.non_finite));
  }
  ranks.all_reduce_sum(sums);
  Verdict verdict;
  double squares = 0;
  for (std::size_t i = 0; i < stats.size(); ++i) {
    if (sums[2 * i + 1] != 0)
      verdict.non_finite_parameter = static_cast<int>(i);
    else
      squares += sums[2 * i];
  }
  verdict.finite = verdict.non_finite_parameter < 0;
  verdict.norm = verdict.finite ? std::sqrt(squares) : std::numeric_limits<double>::quiet_NaN();
  verdict.clip = verdict.finite ? clip_coefficient(verdict.norm, max_norm) : 1.0f;
  return verdict;
}

}  // namespace so
