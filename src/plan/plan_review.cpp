#include "plan/plan_review.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "offload/schedule/placement.h"
#include "plan/learned_rates.h"

namespace so {
namespace {

constexpr double worthwhile = 0.02;  // of a step: what a new plan must gain to be named

bool differs(double measured, double said) {
  return measured > 0 && said > 0 && std::abs(measured / said - 1) > rate_tolerance;
}

std::string beside(double measured, double planned) {
  return fmt::format("{:.3f} s, planned {:.3f} ({:+.1f}%)", measured, planned, 100 * (measured / planned - 1));
}

// Returns the least ratio of few digits that splits the state so; it has as many digits as that takes.
std::string ratio_for(const ParameterLayout& layout, int device_units) {
  const double share = host_share(layout, device_units);
  for (int digits = 2; digits <= 9; ++digits) {
    const double scale = std::pow(10.0, digits), ratio = std::min(1.0, std::ceil(share * scale) / scale);
    if (device_units_for_ratio(layout, ratio) == device_units) return fmt::format("{:.{}f}", ratio, digits);
  }
  return fmt::format("{}", share);
}

}  // namespace

PlanReview::PlanReview(const TrainingPlan& plan, const ParameterLayout& layout, Replan replan)
    : plan_(plan), layout_(layout), replan_(std::move(replan)) {
  SO_CHECK(plan.estimate, "a review of a plan without an estimate");
  planned_ = {plan.estimate->gpu - plan.estimate->device_update, plan.estimate->times.update_seconds};
  said_ = planned_;
}

std::vector<std::string> PlanReview::look(const MeasuredSteps& m) {
  const bool pass = differs(m.pass_seconds, said_.pass_seconds), host = differs(m.update_seconds, said_.update_seconds);
  if (!pass && !host) return {};
  // A rate that was not measured, or is as before, stays.
  if (m.pass_seconds > 0) said_.pass_seconds = m.pass_seconds;
  if (m.update_seconds > 0) said_.update_seconds = m.update_seconds;

  std::vector<std::string> lines;
  std::string line =
      fmt::format("the last {} steps, measured against the plan: a step {}; forward and backward {}", m.count,
                  beside(m.step_seconds, plan_.estimate->seconds()), beside(said_.pass_seconds, planned_.pass_seconds));
  if (m.update_seconds > 0 && planned_.update_seconds > 0)
    line += fmt::format("; AdamW on the host {:.2f} G parameters/s, planned {:.2f} ({:+.1f}%)", 1e-9 / m.update_seconds,
                        1e-9 / planned_.update_seconds, 100 * (planned_.update_seconds / m.update_seconds - 1));
  lines.push_back(std::move(line));
  if (m.speculated + m.previewed + m.left > 0)
    lines.push_back(
        fmt::format("of the host's AdamW buckets {:.1f} a step run before the gradient "
                    "norm is known, {:.1f} more with weights only, {:.1f} after it; the "
                    "device waits {:.3f} s a step for the host and {:.3f} s for transfers",
                    m.speculated, m.previewed, m.left, m.host_wait_seconds, m.link_wait_seconds));
  lines.push_back(advice(said_));
  return lines;
}

std::string PlanReview::advice(const Rates& measured) const {
  MachineRates rates = plan_.rates;
  const double quicker = planned_.pass_seconds / measured.pass_seconds;
  rates.gemm_flops *= quicker;
  rates.device_memory *= quicker;
  if (planned_.update_seconds > 0) rates = with_host_change(rates, planned_.update_seconds / measured.update_seconds);
  const EngineSettings& now = plan_.engine;
  try {
    const TrainingPlan same = replan_(rates, {host_share(layout_, now.placement.count(Owner::device)),
                                              now.placement.count(ResidencyKind::streamed), now.placement.gathered()}),
                       other = replan_(rates, {});
    const double as_it_is = same.estimate->seconds(), best = other.estimate->seconds();
    std::string options;
    if (other.engine.placement.count(Owner::device) != now.placement.count(Owner::device))
      options += " --offload_ratio " + ratio_for(layout_, other.engine.placement.count(Owner::device));
    // Where all state is the device's, nothing streams, and the option is refused.
    if (other.engine.placement.count(ResidencyKind::streamed) != now.placement.count(ResidencyKind::streamed) &&
        other.engine.placement.count(Owner::device) != layout_.units())
      options += fmt::format(" --streamed_layers {}", other.engine.placement.count(ResidencyKind::streamed));
    if (other.engine.placement.gathered() != now.placement.gathered())
      options += fmt::format(" --gathered_layers {}", other.engine.placement.gathered());
    if (options.empty() || best >= (1 - worthwhile) * as_it_is)
      return fmt::format("at these speeds a step is expected to take {:.3f} s, and no other split would be faster",
                         as_it_is);
    return fmt::format(
        "at these speeds a new plan would have {:.1f}% of the optimizer state on the host, not {:.1f}%, and stream the "
        "weights of {} layers, not {}:{} would take {:.3f} s a step instead of {:.3f} ({:+.1f}%)",
        100 * host_share(layout_, other.engine.placement.count(Owner::device)),
        100 * host_share(layout_, now.placement.count(Owner::device)),
        other.engine.placement.count(ResidencyKind::streamed), now.placement.count(ResidencyKind::streamed), options,
        best, as_it_is, 100 * (best / as_it_is - 1));
  } catch (const Error&) {
    return "at these speeds no other plan was found";
  }
}

}  // namespace so
