#include "offload/schedule/step_time.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace so {
namespace {

// State that follows reads and writes all that an update does but the weights: 26 bytes of 28 (18 of 20 with bf16
// moments).
constexpr double follow_share = 0.92;

// Times are seconds since the last verdict.
class Steps {
 public:
  Steps(const UpdateFacts& facts, const UpdateChoice& choice, Verdicts verdicts)
      : f_(facts),
        choice_(choice),
        clip_(verdicts == Verdicts::clip),
        count_(facts.elements.size()),
        done_ahead_(count_, false),
        weights_here_(count_, 0),
        gradient_free_(count_, 0) {}

  // Plays one step; returns its length.
  double next() {
    after_the_verdict();
    double now = forward();
    if (const auto more = static_cast<double>(f_.micro_batches - 1); more > 0)
      now = first_backward(now) + more * f_.first_forward_seconds() + (more - 1) * f_.backward_seconds;
    return backward(now);
  }

 private:
  double elements(std::size_t i) const { return static_cast<double>(f_.elements[i]); }
  // Gives it to whoever is free first once it is `ready`, the host or the link; when it is done.
  double by_first(double ready, double host_seconds, double link_seconds) {
    const bool over_link = f_.link_seconds > 0 && std::max(link_, ready) < std::max(host_, ready);
    double& free = over_link ? link_ : host_;
    return free = std::max(free, ready) + (over_link ? link_seconds : host_seconds);
  }
  double update(std::size_t i, double ready) {
    return by_first(ready, elements(i) * f_.update_seconds, elements(i) * f_.link_seconds);
  }
  double follow(std::size_t i) {
    return by_first(0, elements(i) * follow_share * f_.update_seconds, elements(i) * f_.link_seconds);
  }
  double preview(std::size_t i, double ready) {
    return by_first(ready, elements(i) * f_.preview_seconds, elements(i) * f_.link_preview_seconds);
  }
  double first_free() const { return f_.link_seconds > 0 ? std::min(host_, link_) : host_; }

  // Does the buckets that are due, the lowest first; then state that follows, the highest first.
  void after_the_verdict() {
    std::vector<bool> owing(count_, false);
    for (std::size_t i = 0; i < count_; ++i) {
      weights_here_[i] = gradient_free_[i] = 0;
      if (done_ahead_[i] && !clip_) {
        owing[i] = choice_.ahead[i] == Ahead::preview;
        continue;
      }
      owing[i] = (clip_ ? choice_.redo : choice_.after)[i] == After::weights_first;
      weights_here_[i] = owing[i] ? preview(i, 0) : update(i, 0);
    }
    for (std::size_t i = count_; i-- > 0;)
      if (owing[i]) gradient_free_[i] = follow(i);
  }

  // The first micro-batch's, which waits for new weights.
  double forward() const {
    const double seconds = f_.first_forward_seconds();
    if (f_.awaits_updates) return *std::max_element(weights_here_.begin(), weights_here_.end()) + seconds;
    double now = 0, share = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      now = std::max(now + seconds * (f_.forward_shares[i] - share), weights_here_[i]);
      share = f_.forward_shares[i];
    }
    return now + seconds * (1 - share);
  }

  // Plays a micro-batch that others follow. It waits until the step before needs its gradients no longer.
  double first_backward(double now) {
    double share = 1;
    for (std::size_t i = count_; i-- > 0;) {
      now = std::max(now, std::exchange(gradient_free_[i], 0)) + f_.backward_seconds * (share - f_.forward_shares[i]);
      share = f_.forward_shares[i];
    }
    return now + f_.backward_seconds * share;
  }

  // The last one. The device produces gradients, the highest bucket's first; the host takes them ahead of the verdict
  // as they come.
  double backward(double now) {
    std::vector<double> landed(count_);
    double share = 1;
    for (std::size_t i = count_; i-- > 0;) {
      now = std::max(now, gradient_free_[i]) + f_.backward_seconds * (share - f_.forward_shares[i]);
      share = f_.forward_shares[i];
      landed[i] = now;
    }
    const double verdict = now + f_.backward_seconds * share;
    for (std::size_t i = count_; i-- > 0;) {
      done_ahead_[i] = choice_.ahead[i] != Ahead::leave && std::max(first_free(), landed[i]) < verdict;
      if (done_ahead_[i]) choice_.ahead[i] == Ahead::preview ? preview(i, landed[i]) : update(i, landed[i]);
    }
    host_ = std::max(0.0, host_ - verdict);
    link_ = std::max(0.0, link_ - verdict);
    return verdict;
  }

  const UpdateFacts& f_;
  const UpdateChoice& choice_;
  const bool clip_;
  const std::size_t count_;
  double host_ = 0, link_ = 0;  // when they are free
  std::vector<bool> done_ahead_;
  std::vector<double> weights_here_, gradient_free_;
};

}  // namespace

double step_time(const UpdateFacts& facts, const UpdateChoice& choice, Verdicts verdicts) {
  Steps steps(facts, choice, verdicts);
  constexpr int most = 8;  // enough to settle; where steps alternate, the mean of the last two
  double before = steps.next(), seconds = before;
  for (int i = 1; i < most; ++i) {
    before = seconds;
    seconds = steps.next();
    if (i > 1 && std::abs(seconds - before) <= 1e-4 * seconds) return seconds;
  }
  return (before + seconds) / 2;
}

}  // namespace so
