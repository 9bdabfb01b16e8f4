// A change of a request that was planned: what another run, or a machine with more host memory, would give.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan_question.h"

namespace so {

struct PlanChange {
  // As the command line has them; none: what is missing is no option.
  std::vector<std::pair<std::string, std::string>> options;
  std::string text;                              // for people: the options, or what is missing
  PlanKnobs knobs = {};                          // the request with the change
  std::optional<double> tokens_per_second = {};  // of all ranks; none: not planned yet, or on the CPU device
};

// "--batch_size 2 --max_length 1024", as a shell takes it.
std::string text_of(const std::vector<std::pair<std::string, std::string>>& options);
// The text, with the rate behind it where that is known: "--optimizer_state_dtype bf16: 1,715 tokens/s".
std::string line_of(const PlanChange& change);
// "1,715 tokens/s"
std::string rate_text(double tokens_per_second);

// Of all ranks, by the plan's estimate; none where there is none.
std::optional<double> tokens_per_second(const TrainingPlan& plan);

// The sizes of memory that machines are sold with, ascending. In bytes they are 128e9 and the like: a machine with 128
// GiB has 7% more, which are for the system.
inline constexpr std::size_t gigabyte = 1'000'000'000;
inline constexpr std::size_t sold_memory[]{16 * gigabyte,   32 * gigabyte,   48 * gigabyte,   64 * gigabyte,
                                           96 * gigabyte,   128 * gigabyte,  192 * gigabyte,  256 * gigabyte,
                                           384 * gigabyte,  512 * gigabyte,  768 * gigabyte,  1024 * gigabyte,
                                           1536 * gigabyte, 2048 * gigabyte, 3072 * gigabyte, 4096 * gigabyte};
// The smallest of them that has `bytes`; none if all are smaller.
std::optional<std::size_t> sold_for(std::size_t bytes);
// Whole gigabytes: "128GB".
std::string memory_text(std::size_t bytes);

// Counts this thread's own CPU time, so that what it limits does not depend on what else the machine does.
class CpuTimeLimit {
 public:
  explicit CpuTimeLimit(double seconds) : end_(now() + seconds) {}
  bool left() const { return now() < end_; }

 private:
  static double now();
  double end_;
};

// What would make the steps of a plan quicker whose GPU waits for the host for a tenth of the step or longer: more host
// memory, bf16 or fp8 moments, more tokens a step. Each was planned, and gives 5% more tokens a second; the best first.
// Takes about two seconds of CPU time at most.
std::vector<PlanChange> quicker_changes(const PlanQuestion& question, const TrainingPlan& plan);

}  // namespace so
