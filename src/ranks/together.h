// Work that all ranks do together, and fail at together: one rank's failure is thrown by every rank, at the same place
// of the program, so that none waits for a rank that has gone another way.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "ranks/communicator.h"

namespace so {

// Marks an exception that every rank throws at the same place. None of them waits for another then, so who ends a run
// for it need not abort(), which would give the others a RankFailure in its stead.
class ThrownByAll {
 public:
  virtual ~ThrownByAll() = default;
};
inline bool thrown_by_all(const std::exception& exception) {
  return dynamic_cast<const ThrownByAll*>(&exception) != nullptr;
}

// Throws an Error with this sentence; every rank calls it, because all know the same.
[[noreturn]] void fail_on_all(const std::string& sentence);

// Calls `body` on every rank and returns what each rank's returned, by rank. If it threw on any rank, all throw the
// failure of the lowest such rank: an Error or a Divergence as what it is, with "rank R: " before its sentence unless R
// is 0; anything else as itself on that rank and as a RankFailure on the others. No rank comes out before every rank's
// body has ended. `body` calls no collective. On one rank this is a call of `body`.
//
// Itself a collective: the ranks' times in `body` must not differ by more than their time limit. What it throws on all
// alike is ThrownByAll.
std::vector<std::string> gather_texts(Communicator& ranks, const std::function<std::string()>& body);

// Does the same where nothing is to be told.
void together(Communicator& ranks, const std::function<void()>& body);

// Calls `body` on rank 0 alone; every rank returns its text, or throws its failure.
std::string on_first_rank(Communicator& ranks, const std::function<std::string()>& body);

// While it lives, collectives of this communicator wait at least `seconds`.
class TimeLimitAtLeast {
 public:
  TimeLimitAtLeast(Communicator& ranks, double seconds) : ranks_(ranks), before_(ranks.least_time_limit()) {
    if (seconds > before_) ranks_.set_least_time_limit(seconds);
  }
  ~TimeLimitAtLeast() { ranks_.set_least_time_limit(before_); }
  TimeLimitAtLeast(const TimeLimitAtLeast&) = delete;
  TimeLimitAtLeast& operator=(const TimeLimitAtLeast&) = delete;

 private:
  Communicator& ranks_;
  const double before_;
};

}  // namespace so
