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
  // Logs a line every `interval` steps and for the last one. A terminal shows each step besides, in a line that is
  // redrawn at most ten times a second, in the terminal's width at that time.
  Progress(std::int64_t first_step, std::int64_t total_steps, std::int64_t interval);

  void step(const StepMetrics& metrics);
  void end();  // the line of the last step done stays, whether or not it was due

 private:
  using Clock = std::chrono::steady_clock;
  std::string text(std::size_t columns) const;
  void draw();
  void log();

  std::int64_t done_at_start_, total_, interval_;
  Clock::time_point start_, drawn_{};
  StepMetrics last_;
  double seconds_left_ = 0;
  bool logged_ = true;  // what there is of the last step
};

}  // namespace so
