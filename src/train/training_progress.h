// The progress line of a training run: where it is, how fast, and when it will be done.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "io/metrics.h"

namespace so {

// The line after a step, of the fields that fit `columns`: step and loss first of all, then ETA, tokens/s, learning
// rate, gradient norm, epoch, TFLOP/s, memory. 0 columns: all of them. No field is cut.
std::string training_progress_text(const StepMetrics& metrics, std::int64_t total_steps, double seconds_left,
                                   std::size_t columns);

class Progress {
 public:
  // Prints a line every `interval` steps where output is not a terminal. A terminal's line is redrawn after a step, at
  // most ten times a second, in the terminal's width at that time.
  Progress(std::int64_t first_step, std::int64_t total_steps, std::int64_t interval);

  void step(const StepMetrics& metrics);
  void end();  // the terminal's line, brought up to date, stays where it is

 private:
  using Clock = std::chrono::steady_clock;
  void draw();

  std::int64_t done_at_start_, total_, interval_;
  Clock::time_point start_, drawn_{};
  StepMetrics last_;
  double seconds_left_ = 0;
  bool behind_ = false;  // the terminal does not show the last step yet
};

}  // namespace so
