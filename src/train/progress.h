// The progress line: where the run is, how fast, and when it will be done.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "io/metrics.h"

namespace so {

class Progress {
 public:
  // Prints a line every `interval` steps where output is not a terminal; a terminal's line is always current.
  Progress(std::int64_t first_step, std::int64_t total_steps, std::int64_t interval);

  void step(const StepMetrics& metrics);
  void end();  // the terminal's line is done with

 private:
  std::int64_t done_at_start_, total_, interval_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace so
