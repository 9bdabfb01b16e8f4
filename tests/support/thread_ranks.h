// Runs a test's body on ranks that are threads.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "ranks/thread_ranks.h"
#include "ranks/together.h"

namespace so::test {

// Long beside any exchange of a test, and short beside a test's own limit.
constexpr double rank_time_limit = 60;

// Calls body on `size` threads, each with its rank's communicator. If one throws, the others are freed, and the first
// exception is thrown here.
inline void run_ranks(int size, const std::function<void(Communicator&)>& body, double time_limit = rank_time_limit) {
  const std::vector<std::unique_ptr<Communicator>> ranks = make_thread_ranks(size, time_limit);
  std::vector<std::exception_ptr> errors(ranks.size()), freed(ranks.size());
  {
    std::vector<std::jthread> threads;
    for (const auto& communicator : ranks)
      threads.emplace_back([&errors, &freed, &body, &rank = *communicator] {
        const auto at = static_cast<std::size_t>(rank.rank());
        try {
          body(rank);
        } catch (const RankFailure&) {
          freed[at] = std::current_exception();
        } catch (const std::exception& error) {
          errors[at] = std::current_exception();
          if (!thrown_by_all(error)) rank.abort(error.what());
        }
      });
  }
  errors.insert(errors.end(), freed.begin(), freed.end());  // a rank's own error before those of which it is the reason
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace so::test
