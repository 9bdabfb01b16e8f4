#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace so {

std::int64_t warmup_steps_of(double ratio, std::int64_t total_steps) {
  if (!(ratio >= 0.0 && ratio <= 1.0)) fail("the warmup ratio is {}; it must lie in [0, 1]", ratio);
  if (total_steps < 0) fail("the number of training steps is {}; it must not be negative", total_steps);
  return static_cast<std::int64_t>(std::ceil(ratio * static_cast<double>(total_steps)));
}

LrSchedule::LrSchedule(LrScheduleKind kind, double peak_lr, std::int64_t warmup_steps, std::int64_t total_steps)
    : kind_(kind), peak_lr_(peak_lr), warmup_steps_(warmup_steps), total_steps_(total_steps) {
  if (!(std::isfinite(peak_lr) && peak_lr >= 0.0))
    fail("the learning rate is {}; it must be finite and not negative", peak_lr);
  if (warmup_steps < 0) fail("the number of warmup steps is {}; it must not be negative", warmup_steps);
  if (total_steps < 0) fail("the number of training steps is {}; it must not be negative", total_steps);
}

double LrSchedule::rate(std::int64_t steps_done) const {
  SO_CHECK(steps_done >= 0, "{} steps done", steps_done);
  if (steps_done < warmup_steps_)
    return peak_lr_ * (static_cast<double>(steps_done) / static_cast<double>(warmup_steps_));
  if (kind_ == LrScheduleKind::constant) return peak_lr_;
  if (steps_done >= total_steps_) return 0.0;
  const auto decay_steps = static_cast<double>(total_steps_ - warmup_steps_);  // positive: warmup <= done < total
  if (kind_ == LrScheduleKind::linear) return peak_lr_ * (static_cast<double>(total_steps_ - steps_done) / decay_steps);
  const double progress = static_cast<double>(steps_done - warmup_steps_) / decay_steps;
  return peak_lr_ * std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
}

}  // namespace so
