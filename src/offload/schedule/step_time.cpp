#include "offload/schedule/step_time.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace so {
namespace {

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
    return backward(forward());
  }

 private:
  double elements(std::size_t i) const { return static_cast<double>(f_.elements[i]); }
  double update(std::size_t i) const { return elements(i) * f_.update_seconds; }
  double preview(std::size_t i) const { return elements(i) * f_.preview_seconds; }

  // The host: what is due, the lowest bucket first; then state that follows, the highest first.
  void after_the_verdict() {
    std::vector<bool> owing(count_, false);
    for (std::size_t i = 0; i < count_; ++i) {
      weights_here_[i] = gradient_free_[i] = 0;
      if (done_ahead_[i] && !clip_) {
        owing[i] = choice_.ahead[i] == Ahead::preview;
        continue;
      }
      owing[i] = (clip_ ? choice_.redo : choice_.after)[i] == After::weights_first;
      host_ += owing[i] ? preview(i) : update(i);
      weights_here_[i] = host_;
    }
    for (std::size_t i = count_; i-- > 0;)
      if (owing[i]) gradient_free_[i] = host_ += update(i);
  }

  double forward() const {
    double now = 0, share = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      now = std::max(now + f_.forward_seconds * (f_.forward_shares[i] - share), weights_here_[i]);
      share = f_.forward_shares[i];
    }
    return now + f_.forward_seconds * (1 - share);
  }

  // The device produces gradients, the highest bucket's first; the host takes them ahead of the verdict as they come.
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
      const double start = std::max(host_, landed[i]);
      done_ahead_[i] = choice_.ahead[i] != Ahead::leave && start < verdict;
      if (done_ahead_[i]) host_ = start + (choice_.ahead[i] == Ahead::preview ? preview(i) : update(i));
    }
    host_ = std::max(0.0, host_ - verdict);
    return verdict;
  }

  const UpdateFacts& f_;
  const UpdateChoice& choice_;
  const bool clip_;
  const std::size_t count_;
  double host_ = 0;  // when it is free
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
