// How long the ranks of a training run wait for one that does not answer.
#pragma once

#include <cstdint>

#include "ranks/communicator.h"

namespace so {

// Sets the ranks' time limit from measured steps:
//  - A step that follows a step: `multiple` times the longest step, or what the largest is expected to take. All that
//    the ranks do there was measured, so the limit is short.
//  - A step beside which a checkpoint is written waits for a file system too: once one has been written, the limit
//    follows the longest of these steps, and is at least least_saving_seconds.
//  - Everything else, and the step after it: at least the limit that the ranks had at first. These are the first steps,
//    which touch memory for the first time, evaluations, the beginning of a save, and other work of unknown length.
// All ranks make the same calls, by which each sets its own limit.
class StepTimeLimit {
 public:
  static constexpr double least_seconds = 30;  // longer than any stall of a machine that still works
  static constexpr double multiple = 10;
  static constexpr int measured_steps = 2;             // before a limit is short
  static constexpr double least_saving_seconds = 300;  // longer than any stall of a file system that still works

  // `most_tokens`: of the largest step there can be, of all ranks.
  StepTimeLimit(Communicator& ranks, std::int64_t most_tokens);
  ~StepTimeLimit();
  StepTimeLimit(const StepTimeLimit&) = delete;
  StepTimeLimit& operator=(const StepTimeLimit&) = delete;

  // Other work than a step begins.
  void begin_other_work();
  // A checkpoint begins, behind one that may be under way.
  void begin_save();
  // A step begins. `saving`: beside it a checkpoint is written, for which updates may have to wait.
  void begin_step(bool saving);
  void end_step(double seconds, std::int64_t tokens);

 private:
  void set_saving(bool saving);
  double of_steps() const;
  double of_saving_steps() const;
  bool is_known() const { return steps_ >= measured_steps; }

  Communicator& ranks_;
  const double at_first_;
  const double most_tokens_;
  bool after_step_ = false;    // nothing but a step came before what comes next
  bool saving_ = false;        // beside this step or, between two, beside the last one
  int steps_ = 0;              // that were measured: nothing but a step came before, and nothing is beside them
  double longest_ = 0;         // of them, in seconds
  double largest_step_ = 0;    // the seconds that a step of most_tokens_ is expected to take, at most
  int saves_ = 0;              // that have ended
  double longest_saving_ = 0;  // seconds of a step beside one
};

}  // namespace so
