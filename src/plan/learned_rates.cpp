#include "plan/learned_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace so {
namespace {

// A machine's rates do not change by more than this; a run that was stopped for a while may seem to.
constexpr double largest_change = 3;

double change_of(double planned, double measured) {
  if (planned <= 0 || measured <= 0) return 1;
  const double change = planned / measured;
  return change > largest_change || change < 1 / largest_change ? 1 : change;
}

std::string learned_beside(double learned, double planned) {
  return fmt::format("{:.4g} GB/s, planned {:.4g} ({:+.1f}%)", learned / 1e9, planned / 1e9,
                     100 * (learned / planned - 1));
}

double both_ways(const MachineRates& rates) {
  return std::min(rates.link_both, 2 * std::min(rates.link_to_host, rates.link_to_device));
}

}  // namespace

MachineRates with_host_change(MachineRates rates, double change) {
  for (double MachineRates::*rate :
       {&MachineRates::host_adamw, &MachineRates::host_adamw_wide, &MachineRates::host_memory})
    rates.*rate *= change;
  return rates;
}

std::optional<LearnedRates> learn_rates(const TrainingPlan& plan, const StepTimes& measured, std::int64_t steps) {
  if (!plan.estimate) return std::nullopt;
  const StepTimes& planned = plan.estimate->times;
  const double host = change_of(planned.update_seconds, measured.update_seconds);
  double link = std::min(1.0, change_of(planned.link_seconds, measured.link_seconds) / std::min(1.0, host));
  if (link > 1 - rate_tolerance) link = 1;
  if (std::abs(host - 1) <= rate_tolerance && link == 1) return std::nullopt;
  const MachineRates rates = with_host_change(plan.rates, host);
  return LearnedRates{.host_adamw = rates.host_adamw,
                      .host_adamw_wide = rates.host_adamw_wide,
                      .host_memory = rates.host_memory,
                      .link_both = link < 1 ? link * both_ways(rates) : 0,
                      .source = fmt::format("{} steps of a run", steps)};
}

std::string describe(const LearnedRates& learned, const MachineRates& planned) {
  std::string text = fmt::format("AdamW on the host ran at {}; host memory under it and transfers at {}",
                                 learned_beside(learned.host_adamw, planned.host_adamw),
                                 learned_beside(learned.host_memory, planned.host_memory));
  if (learned.link_both > 0)
    text += fmt::format("; the link, both ways at once, at {}", learned_beside(learned.link_both, both_ways(planned)));
  return text;
}

std::string keep_learned(const LearnedRates& learned, const TrainingPlan& plan, const RateCache& cache,
                         const RateKey& key, std::time_t now) {
  return describe(learned, plan.rates) +
         (cache.learn(key, learned, now) ? "; kept for the next plan on this machine (--profile fresh measures anew)"
                                         : "; not kept, since there is no file of measured rates to keep it in");
}

}  // namespace so
