// How long the ranks of a training run wait for one that does not answer.
#pragma once

#include <cstdint>

#include "ranks/communicator.h"

namespace so {

// Sets the ranks' time limit by the steps that were measured. A step that follows a step gets a short one, since all
// that the ranks do there was measured: a multiple of the longest step, or of what the largest step is expected to
// take. So does a review of the plan, with the step after it, and some seconds more: it comes every few steps, and
// between short ones most of the time may be its. Everything else, and the step after it, keeps the limit that the
// ranks had at first: the first steps, which touch memory for the first time, and evaluations, saves and what else
// takes a rank as long as it takes. All ranks make the same calls, by which each sets its own limit.
class StepTimeLimit {
 public:
  static constexpr double least_seconds = 30;  // longer than any stall of a machine that still works
  static constexpr double multiple = 10;
  static constexpr int measured_steps = 2;      // before a limit is short
  static constexpr double review_seconds = 30;  // planning anew has taken up to 7 s

  // `most_tokens`: of the largest step there can be, of all ranks.
  StepTimeLimit(Communicator& ranks, std::int64_t most_tokens);
  ~StepTimeLimit();
  StepTimeLimit(const StepTimeLimit&) = delete;
  StepTimeLimit& operator=(const StepTimeLimit&) = delete;

  // Other work than a step begins.
  void begin_other_work();
  // One of the ranks looks at the plan (plan/plan_review.h).
  void begin_review();
  // A step begins. `saving`: beside it a checkpoint is written, for which updates may have to wait.
  void begin_step(bool saving);
  void end_step(double seconds, std::int64_t tokens);

 private:
  double of_steps() const;
  bool is_known() const { return steps_ >= measured_steps; }

  Communicator& ranks_;
  const double at_first_;
  const double most_tokens_;
  bool after_step_ = false;    // nothing but a step came before what comes next
  bool after_review_ = false;  // nothing but a step and a review
  bool measured_ = false;      // this step, which has nothing beside it
  int steps_ = 0;              // that were measured
  double longest_ = 0;         // of them, in seconds
  double largest_step_ = 0;    // the seconds that a step of most_tokens_ is expected to take, at most
};

}  // namespace so
