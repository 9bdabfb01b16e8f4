// A training run in a few numbers: for its closing lines, and for the last line of metrics.jsonl.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "io/metrics.h"

namespace so {

class RunTotalsMeter {
 public:
  void start();  // the clock
  void step(const StepMetrics& metrics, bool clipped);
  void evaluation(std::int64_t step, double loss);
  RunTotals totals() const;  // until now

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  RunTotals totals_;
};

// For people, a line a subject: "trained: steps 1 to 12, 3034 tokens in 8s; steps at 372 tok/s", losses, evaluations if
// there were any. Empty for a run without a step.
std::vector<std::string> describe(const RunTotals& totals);

// "gradients: 3 of 12 steps clipped, 0 skipped as not finite"
std::string gradients_line(const RunTotals& totals);

}  // namespace so
