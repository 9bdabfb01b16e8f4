// The decision at the end of a backward pass: does the step stand, and by what are its gradients clipped?
#pragma once

#include <span>

#include "optim/engine_ops.h"
#include "ranks/communicator.h"

namespace so {

struct Verdict {
  bool finite = true;  // false: some gradient is Inf or NaN, the step must be skipped
  double norm = 0;     // global L2 norm before clipping; NaN when not finite
  float clip = 1;      // multiplies every gradient: 1 when within bounds
  // Where non-finiteness began in the order of the backward pass, which goes from the last parameter to the first: the
  // last one with a non-finite gradient; -1 when none.
  int non_finite_parameter = -1;
};

// From the stats of every parameter's gradient, or of this rank's slices of it, in parameter order. They are added over
// ranks first, by parameter, and then in parameter order, so that owners cannot change the verdict, and every rank
// comes to the same one. max_norm <= 0: no clipping.
Verdict make_verdict(std::span<const GradStats> stats, Communicator& ranks, double max_norm);

}  // namespace so
