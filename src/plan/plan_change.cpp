#include "plan/plan_change.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cmath>

#include "base/quantities.h"

namespace so {
namespace {

// A word of a shell's line.
std::string shell_word(const std::string& value) {
  return value.find_first_of("*?[ ") == std::string::npos ? value : fmt::format("'{}'", value);
}

}  // namespace

std::string text_of(const std::vector<std::pair<std::string, std::string>>& options) {
  std::string text;
  for (const auto& [name, value] : options)
    text += fmt::format("{}--{} {}", text.empty() ? "" : " ", name, shell_word(value));
  return text;
}

std::string rate_text(double tokens_per_second) {
  std::string digits = fmt::format("{:.0f}", tokens_per_second);
  for (std::size_t left = digits.size(); left > 3; left -= 3) digits.insert(left - 3, 1, ',');
  return digits + " tokens/s";
}

std::string line_of(const PlanChange& change) {
  return change.tokens_per_second ? fmt::format("{}: {}", change.text, rate_text(*change.tokens_per_second))
                                  : change.text;
}

std::optional<double> tokens_per_second(const TrainingPlan& plan) {
  if (!plan.estimate) return std::nullopt;
  const TrainingShape& shape = plan.shape;
  const double tokens = shape.usual_tokens > 0 ? shape.usual_tokens : static_cast<double>(shape.micro_batch_tokens);
  return tokens * static_cast<double>(shape.micro_batches) * shape.ranks / shape.sequence / plan.estimate->seconds();
}

std::optional<std::size_t> sold_for(std::size_t bytes) {
  const auto found = std::lower_bound(std::begin(sold_memory), std::end(sold_memory), bytes);
  return found == std::end(sold_memory) ? std::nullopt : std::optional(*found);
}

std::string memory_text(std::size_t bytes) { return fmt::format("{}GB", bytes / 1'000'000'000); }

double CpuTimeLimit::now() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::vector<PlanChange> quicker_changes(const PlanQuestion& question, const TrainingPlan& plan) {
  constexpr double noticed = 0.1, worth_saying = 1.05, most_seconds = 2;
  if (!plan.estimate || plan.estimate->exposed < noticed * plan.estimate->seconds()) return {};
  const double now = *tokens_per_second(plan);
  const CpuTimeLimit limit(most_seconds);
  std::vector<PlanChange> quicker;
  const auto consider = [&](PlanChange change) {
    if (!limit.left()) return;
    change.knobs.explain.clear();
    try {
      change.tokens_per_second = tokens_per_second(question.plan(change.knobs));
    } catch (const MemoryRefusal&) {
      return;
    }
    if (*change.tokens_per_second > worth_saying * now) quicker.push_back(std::move(change));
  };
  const auto with = [&](const char* option, const std::string& value, const auto& set) {
    const OptionSpec* spec = question.rows->find(option);
    if (!spec || (question.results_fixed && spec->changes_results)) return;
    PlanChange change{{{option, value}}, fmt::format("--{} {}", option, value), question.asked};
    set(change.knobs);
    consider(std::move(change));
  };
  if (question.asked.optimizer_state_dtype == StatePrecision::fp32)
    with("optimizer_state_dtype", "bf16", [](PlanKnobs& knobs) { knobs.optimizer_state_dtype = StatePrecision::bf16; });
  if (question.asked.optimizer_state_dtype != StatePrecision::fp8)
    with("optimizer_state_dtype", "fp8", [](PlanKnobs& knobs) { knobs.optimizer_state_dtype = StatePrecision::fp8; });
  const std::int64_t more_micro_batches = 4 * question.asked.gradient_accumulation_steps;
  with("gradient_accumulation_steps", std::to_string(more_micro_batches),
       [&](PlanKnobs& knobs) { knobs.gradient_accumulation_steps = more_micro_batches; });
  if (question.there.host && question.buys_memory && question.rows->find("host_memory")) {
    const auto ranks = static_cast<std::size_t>(question.host_ranks);
    if (const auto twice = sold_for(2 * *question.there.host * ranks)) {
      PlanChange change{
          {{"host_memory", memory_text(*twice)}}, memory_text(*twice) + " of host memory", question.asked};
      change.knobs.memory.host = *twice / ranks;
      consider(std::move(change));
    }
  }
  std::stable_sort(quicker.begin(), quicker.end(), [](const PlanChange& a, const PlanChange& b) {
    return *a.tokens_per_second > *b.tokens_per_second;
  });
  return quicker;
}

}  // namespace so
