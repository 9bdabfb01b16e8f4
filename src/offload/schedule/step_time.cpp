#include "offload/schedule/step_time.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace so {

StepTimer::StepTimer(const UpdateFacts& facts)
    : count_(facts.elements.size()),
      has_link_(facts.link_seconds > 0),
      awaits_updates_(facts.awaits_updates),
      micro_batches_(facts.micro_batches),
      first_forward_(facts.first_forward_seconds()),
      backward_(facts.backward_seconds),
      late_(facts.late.begin(), facts.late.end()),
      weights_here_(count_, 0),
      gradient_free_(count_, 0),
      landed_(count_, 0) {
  for (std::size_t i = 0; i < count_; ++i) {
    const auto elements = static_cast<double>(facts.elements[i]);
    const double link = elements * facts.link_seconds;
    updates_.push_back({elements * facts.update_seconds, link});
    follows_.push_back({elements * follow_share * facts.update_seconds, link});
    previews_.push_back({elements * facts.preview_seconds, elements * facts.link_preview_seconds});
    needed_.push_back(first_forward_ * facts.needed[i]);
    streams_.push_back(static_cast<double>(facts.streamed_elements(i)) * facts.stream_seconds);
  }
  by_need_.resize(count_);
  std::iota(by_need_.begin(), by_need_.end(), std::size_t{0});
  std::stable_sort(by_need_.begin(), by_need_.end(),
                   [&](std::size_t a, std::size_t b) { return needed_[a] < needed_[b]; });
  double left = 1;
  for (std::size_t i = count_; i-- > 0;) {
    const double after = std::min(left, facts.left[i]);
    if (passes_.empty() || after < left) passes_.push_back({.end = i + 1, .seconds = backward_ * (left - after)});
    passes_.back().begin = i;
    left = after;
  }
  backward_rest_ = backward_ * left;
  least_ = static_cast<double>(micro_batches_) * (first_forward_ + backward_);
}

// Plays one step; returns its length.
double StepTimer::next(const UpdateChoice& choice, bool clip) {
  after_the_verdict(choice, clip);
  double now = forward();
  if (const auto more = static_cast<double>(micro_batches_ - 1); more > 0)
    now = first_backward(now) + more * first_forward_ + (more - 1) * backward_;
  return backward(choice, now);
}

// Gives work to whoever is free first once it is `ready`, the host or the link; returns when it is done.
inline double StepTimer::by_first(double ready, const Work& work) {
  const double host = std::max(carried_.host, ready), link = std::max(carried_.link, ready);
  if (!has_link_ || !(link < host)) return carried_.host = host + work.host;
  return carried_.link = link + work.link;
}

inline double StepTimer::first_free() const {
  return has_link_ ? std::min(carried_.host, carried_.link) : carried_.host;
}

// Does the buckets that are due, the lowest first and the late ones last; then state that follows, the highest first.
void StepTimer::after_the_verdict(const UpdateChoice& choice, bool clip) {
  const std::vector<After>& after = clip ? choice.redo : choice.after;
  bool any_owing = false, any_late = false;
  for (std::size_t i = 0; i < count_; ++i) {
    gradient_free_[i] = 0;
    any_late = any_late || is_late(i);
    if (is_late(i)) continue;
    const bool done_ahead = i >= carried_.ahead_from && choice.ahead[i] != Ahead::leave;
    const bool owing = done_ahead && !clip ? choice.ahead[i] == Ahead::preview : after[i] == After::weights_first;
    weights_here_[i] = done_ahead && !clip ? 0 : by_first(0, owing ? previews_[i] : updates_[i]);
    gradient_free_[i] = owing ? 1 : 0;  // to be replaced below
    any_owing = any_owing || owing;
  }
  for (std::size_t i = 0; any_late && i < count_; ++i)
    if (is_late(i)) weights_here_[i] = gradient_free_[i] = by_first(0, updates_[i]);
  for (std::size_t i = count_; any_owing && i-- > 0;)
    if (gradient_free_[i] > 0 && !is_late(i)) gradient_free_[i] = by_first(0, follows_[i]);
}

// The first micro-batch's, which waits for new weights.
double StepTimer::forward() const {
  if (awaits_updates_) return *std::max_element(weights_here_.begin(), weights_here_.end()) + first_forward_;
  double now = 0, passed = 0, streamed = 0;
  for (const std::size_t i : by_need_) {
    if (needed_[i] > first_forward_) break;  // PassShares::never
    double here = weights_here_[i];
    if (streams_[i] > 0) here = streamed = std::max(streamed, here) + streams_[i];
    now = std::max(now + needed_[i] - passed, here);
    passed = needed_[i];
  }
  return now + first_forward_ - passed;
}

// Returns when the pass is done, which begins when none of its buckets needs its last gradient any more.
inline double StepTimer::after_pass(const Pass& pass, double now) {
  for (std::size_t i = pass.begin; i < pass.end; ++i) now = std::max(now, std::exchange(gradient_free_[i], 0));
  return now + pass.seconds;
}

// Plays a micro-batch that others follow. It waits until the step before needs its gradients no longer.
double StepTimer::first_backward(double now) {
  for (const Pass& pass : passes_) now = after_pass(pass, now);
  return now + backward_rest_;
}

// The last one. The device produces gradients, the highest bucket's first; the host takes them ahead of the verdict
// as they come, up to the first that comes too late.
double StepTimer::backward(const UpdateChoice& choice, double now) {
  for (const Pass& pass : passes_) {
    now = after_pass(pass, now);
    std::fill_n(landed_.begin() + static_cast<std::ptrdiff_t>(pass.begin), pass.end - pass.begin, now);
  }
  const double verdict = now + backward_rest_;
  std::size_t from = count_;
  const auto is_left = [&](std::size_t i) { return choice.ahead[i] == Ahead::leave || is_late(i); };
  while (from > 0 && (is_left(from - 1) || std::max(first_free(), landed_[from - 1]) < verdict)) {
    --from;
    if (!is_left(from))
      by_first(landed_[from], choice.ahead[from] == Ahead::preview ? previews_[from] : updates_[from]);
  }
  carried_ = {std::max(0.0, carried_.host - verdict), std::max(0.0, carried_.link - verdict), from};
  return verdict;
}

double StepTimer::seconds(const UpdateChoice& choice, Verdicts verdicts) {
  const bool clip = verdicts == Verdicts::clip;
  constexpr int most = 8;  // enough to settle; where steps alternate, the mean of the last two
  const Carried none{.ahead_from = count_};
  carried_ = none;
  Carried two_before = none, before_this = none;
  double before = 0, seconds = 0;
  for (int i = 0; i < most; ++i) {
    two_before = std::exchange(before_this, carried_);
    before = std::exchange(seconds, next(choice, clip));
    if (i > 1 && std::abs(seconds - before) <= 1e-4 * seconds) return seconds;
    if (i + 1 == most) break;
    if (carried_ == before_this) return seconds;                         // all that follow are like this one
    if (i > 1 && carried_ == two_before) return (before + seconds) / 2;  // and here like these two in turn
  }
  return (before + seconds) / 2;
}

double step_time(const UpdateFacts& facts, const UpdateChoice& choice, Verdicts verdicts) {
  return StepTimer(facts).seconds(choice, verdicts);
}

}  // namespace so
