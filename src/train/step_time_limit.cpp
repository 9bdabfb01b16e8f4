#include "train/step_time_limit.h"

#include <algorithm>
#include <utility>

namespace so {

StepTimeLimit::StepTimeLimit(Communicator& ranks, std::int64_t most_tokens)
    : ranks_(ranks), at_first_(ranks.time_limit()), most_tokens_(static_cast<double>(most_tokens)) {}

StepTimeLimit::~StepTimeLimit() { ranks_.set_time_limit(at_first_); }

double StepTimeLimit::of_steps() const { return std::max(least_seconds, multiple * std::max(longest_, largest_step_)); }

double StepTimeLimit::of_saving_steps() const {
  return std::max({least_saving_seconds, of_steps(), multiple * longest_saving_});
}

void StepTimeLimit::begin_other_work() {
  after_step_ = false;
  ranks_.set_time_limit(std::max(at_first_, of_steps()));
}

void StepTimeLimit::begin_save() {
  set_saving(false);
  begin_other_work();
}

void StepTimeLimit::set_saving(bool saving) {
  if (saving_ && !saving) ++saves_;
  saving_ = saving;
}

void StepTimeLimit::begin_step(bool saving) {
  set_saving(saving);
  double limit = std::max(at_first_, of_steps());
  if (after_step_ && is_known() && (!saving || saves_ > 0)) limit = saving ? of_saving_steps() : of_steps();
  ranks_.set_time_limit(limit);
}

void StepTimeLimit::end_step(double seconds, std::int64_t tokens) {
  const bool after_step = std::exchange(after_step_, true);
  if (saving_) longest_saving_ = std::max(longest_saving_, seconds);
  if (!after_step || saving_) return;
  longest_ = std::max(longest_, seconds);
  // A step takes a while whatever its size, so a small one overestimates a large one, and the least estimate is the
  // best. Attention, which grows faster than its tokens, is what the multiple has room for.
  const double all = seconds * std::max(1.0, most_tokens_ / static_cast<double>(std::max<std::int64_t>(1, tokens)));
  largest_step_ = steps_ == 0 ? all : std::min(largest_step_, all);
  ++steps_;
}

}  // namespace so
