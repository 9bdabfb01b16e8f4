#include "train/step_time_limit.h"

#include <algorithm>

namespace so {

StepTimeLimit::StepTimeLimit(Communicator& ranks, std::int64_t most_tokens)
    : ranks_(ranks), at_first_(ranks.time_limit()), most_tokens_(static_cast<double>(most_tokens)) {}

StepTimeLimit::~StepTimeLimit() { ranks_.set_time_limit(at_first_); }

double StepTimeLimit::of_steps() const { return std::max(least_seconds, multiple * std::max(longest_, largest_step_)); }

void StepTimeLimit::begin_other_work() {
  after_step_ = after_review_ = false;
  ranks_.set_time_limit(std::max(at_first_, of_steps()));
}

void StepTimeLimit::begin_review() {
  const bool is_short = after_step_ && is_known();
  begin_other_work();
  after_review_ = is_short;
  if (is_short) ranks_.set_time_limit(of_steps() + review_seconds);
}

void StepTimeLimit::begin_step(bool saving) {
  measured_ = after_step_ && !saving;
  if (measured_ && is_known())
    ranks_.set_time_limit(of_steps());
  else if (after_review_ && !saving)
    ranks_.set_time_limit(of_steps() + review_seconds);
  else
    ranks_.set_time_limit(std::max(at_first_, of_steps()));
  after_review_ = false;
}

void StepTimeLimit::end_step(double seconds, std::int64_t tokens) {
  after_step_ = true;
  if (!measured_) return;
  longest_ = std::max(longest_, seconds);
  // A step takes a while whatever its size, so a small one overestimates a large one, and the least estimate is the
  // best. Attention, which grows faster than its tokens, is what the multiple has room for.
  const double all = seconds * std::max(1.0, most_tokens_ / static_cast<double>(std::max<std::int64_t>(1, tokens)));
  largest_step_ = steps_ == 0 ? all : std::min(largest_step_, all);
  ++steps_;
}

}  // namespace so
