// Time that passes while a rank waits for others.
#pragma once

#include <algorithm>
#include <chrono>

#include "ranks/communicator.h"

namespace so {

// Counts from its construction. A rank that was stopped itself (a debugger, a batch system that suspends jobs, a
// machine that sleeps) has given the others no time to answer, so what passes between two looks counts for a second at
// most.
class RankWait {
 public:
  explicit RankWait(const Communicator& ranks) : ranks_(ranks) {}

  // Whether the time limit, as it is now, is over. To be asked often.
  bool over() {
    const Clock::time_point now = Clock::now();
    waited_ += std::min(std::chrono::duration<double>(now - looked_).count(), 1.0);
    looked_ = now;
    return waited_ >= ranks_.time_limit();
  }
  double left() const { return std::max(0.0, ranks_.time_limit() - waited_); }  // seconds, at the last look

 private:
  using Clock = std::chrono::steady_clock;
  const Communicator& ranks_;
  Clock::time_point looked_ = Clock::now();
  double waited_ = 0;
};

}  // namespace so
