#include "plan/learned_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "plan/simulate/simulator.h"

namespace so {
namespace {

// A machine's rates do not change by more than this; a run that was stopped for a while may seem to. What the host's
// memory leaves to the link may be a part of what was planned.
constexpr double largest_change = 3, largest_link_change = 8;

double change_of(double planned, double measured, double largest) {
  if (planned <= 0 || measured <= 0) return 1;
  const double change = planned / measured;
  return change > largest || change < 1 / largest ? 1 : change;
}

std::string learned_beside(double learned, double planned) {
  return fmt::format("{:.4g} GB/s, planned {:.4g} ({:+.1f}%)", learned / 1e9, planned / 1e9,
                     100 * (learned / planned - 1));
}

double both_ways(const MachineRates& rates) {
  return std::min(rates.link_both, 2 * std::min(rates.link_to_host, rates.link_to_device));
}

// Of a run whose device updates some of the host's state, too: the rates with which the run that was planned would have
// been simulated as it was measured, as near as a few attempts come. The processors and the link share the host's
// memory, and which of them gets how much of it no plan knows: where an update by the host was quicker and one over the
// link slower than planned, it is the link that got less, and not the memory that gave more.
MachineRates with_sharing(const TrainingPlan& plan, const StepTimes& measured) {
  constexpr int attempts = 12;
  constexpr double near = 0.02;
  SimulatedRun run = *plan.run;
  const double update = 2 * run.state_bytes + run.gradient_bytes + run.weight_bytes,
               most_link = std::min(run.link_both, 2 * std::min(run.link_to_host, run.link_to_device));
  run.link_both = most_link;
  SimulatedRun best = run;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < attempts && least > near; ++i) {
    const StepTimes times = Simulator(run).settle().times;
    if (times.update_seconds <= 0 || times.link_seconds <= 0) break;
    const double host = times.update_seconds / measured.update_seconds,
                 link = times.link_seconds / measured.link_seconds;
    if (const double off = std::max(std::abs(host - 1), std::abs(link - 1)); off < least) {
      least = off;
      best = run;
    }
    const double used = update / measured.update_seconds;  // by AdamW, which can use so much
    if (host < 1 - near && link < 1 - near) {
      run.host_memory *= std::max(host, link);
    } else if (std::abs(link - 1) > near && (link < 1 || run.link_both < most_link)) {
      run.link_both = std::min(most_link, run.link_both * link);
      run.host_adamw = std::max(run.host_adamw, used);
    } else if (host < 1) {
      run.host_adamw *= host;
    } else if (run.host_adamw < used) {
      run.host_adamw = used;
    } else {
      run.host_memory *= std::max(host, link);
    }
  }
  MachineRates rates = plan.rates;
  rates.host_memory = best.host_memory;
  for (double MachineRates::*rate : {&MachineRates::host_adamw, &MachineRates::host_adamw_wide})
    rates.*rate *= best.host_adamw / plan.run->host_adamw;
  rates.link_both = best.link_both;
  return rates;
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
  const double host = change_of(planned.update_seconds, measured.update_seconds, largest_change),
               link = change_of(planned.link_seconds, measured.link_seconds, largest_link_change);
  if (std::abs(host - 1) <= rate_tolerance && link > 1 - rate_tolerance) return std::nullopt;
  const bool shared = plan.run && planned.link_seconds > 0 && measured.link_seconds > 0;
  if (shared && (host == 1 || link == 1)) return std::nullopt;  // one of them says nothing
  const MachineRates rates = shared ? with_sharing(plan, measured) : with_host_change(plan.rates, host);
  const bool link_too = shared && rates.link_both < (1 - rate_tolerance) * both_ways(plan.rates);
  return LearnedRates{.host_adamw = rates.host_adamw,
                      .host_adamw_wide = rates.host_adamw_wide,
                      .host_memory = rates.host_memory,
                      .link_both = link_too ? rates.link_both : 0,
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
