#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace so {

std::int64_t share_of_steps(double ratio, std::int64_t total_steps) {
  if (!(ratio >= 0.0 && ratio <= 1.0)) fail("a share of the training steps is {}; it must lie in [0, 1]", ratio);
  if (total_steps < 0) fail("the number of training steps is {}; it must not be negative", total_steps);
  return static_cast<std::int64_t>(std::ceil(ratio * static_cast<double>(total_steps)));
}

LrSchedule::LrSchedule(const LrCourse& course) : course_(course) {
  const LrCourse& c = course;
  if (!(std::isfinite(c.peak) && c.peak >= 0.0))
    fail("the learning rate is {}; it must be finite and not negative", c.peak);
  if (!(c.least >= 0.0 && c.least <= c.peak))
    fail("the least learning rate is {}; it must lie between 0 and the peak, {}", c.least, c.peak);
  if (c.warmup_steps < 0) fail("the number of warmup steps is {}; it must not be negative", c.warmup_steps);
  if (c.decay_steps < 0) fail("the number of decay steps is {}; it must not be negative", c.decay_steps);
  if (c.total_steps < 0) fail("the number of training steps is {}; it must not be negative", c.total_steps);
}

double LrSchedule::rate(std::int64_t steps_done) const {
  SO_CHECK(steps_done >= 0, "{} steps done", steps_done);
  const LrCourse& c = course_;
  if (steps_done < c.warmup_steps)
    return c.peak * (static_cast<double>(steps_done) / static_cast<double>(c.warmup_steps));
  if (c.kind == LrScheduleKind::constant) return c.peak;
  if (steps_done >= c.total_steps) return c.least;
  const std::int64_t begin =
      c.kind == LrScheduleKind::wsd ? std::max(c.warmup_steps, c.total_steps - c.decay_steps) : c.warmup_steps;
  if (steps_done < begin) return c.peak;
  const auto decay_steps = static_cast<double>(c.total_steps - begin);  // positive: begin <= done < total
  const double range = c.peak - c.least;
  if (c.kind == LrScheduleKind::linear)
    return c.least + range * (static_cast<double>(c.total_steps - steps_done) / decay_steps);
  const double progress = static_cast<double>(steps_done - begin) / decay_steps;
  return c.least + range * std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
}

}  // namespace so
