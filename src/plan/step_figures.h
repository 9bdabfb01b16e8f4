// What a run says of its steps: every figure is a mean over the same steps, so that the figures agree with each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "offload/schedule/overlap.h"

namespace so {

// One step, or the sum of several.
struct MeasuredStep {
  StepOverlap overlap;     // with the step's seconds
  double tokens = 0;       // of all ranks, as the FLOPs
  double model_flops = 0;  // which measure how much work the step was
  double reference_flops = 0;
};

struct StepFigures {
  std::int64_t steps = 0;     // that count; 0: no step was measured
  std::int64_t left_out = 0;  // that took much longer than the others for their work
  MeasuredStep sum;           // of those that count
  double of_a_step(double summed) const { return steps > 0 ? summed / static_cast<double>(steps) : 0; }
  double seconds() const { return of_a_step(sum.overlap.seconds); }
  double tokens_per_s() const { return steps > 0 ? sum.tokens / sum.overlap.seconds : 0; }
};

// All steps count but those that took more than half as long again as the median, both in seconds and for each FLOP.
// Such a step loaded kernels (a new shape's first use takes 50 ms to seconds), or something else stopped it. A step of
// longer documents takes longer, but not for its FLOPs, and is kept.
StepFigures figures_of(std::span<const MeasuredStep> steps);

// The steps of a run from which its figures are made: the last ones, so that a long run does not take more memory.
class StepHistory {
 public:
  static constexpr std::size_t most = 10'000;
  void add(const MeasuredStep& step);
  StepFigures figures() const;

 private:
  std::deque<MeasuredStep> steps_;
};

}  // namespace so
