#include "plan/placement/more_on_host.h"

#include <fmt/format.h>

#include <utility>

namespace so {
namespace {

constexpr int parts = 8;              // of the device's units go to the host one after another
constexpr double half_host = 0.5;     // of the host's rates
constexpr double least_gain = 0.004;  // a part of the step
constexpr double rounding = 1 + 1e-6;

// A step of the run with so much of the host's rates.
double step_seconds(const PlacementInputs& in, const SimulatedRun& chosen, double host, Verdicts verdicts) {
  SimulatedRun run = with_host_rates(chosen, host);
  run.verdicts = verdicts;
  return in.known_steps->estimate(run).seconds();
}

}  // namespace

ChosenPlan with_more_on_host(const PlacementInputs& in, ChosenPlan chosen) {
  if (in.forced_device_units || in.schedule != Schedule::overlapped ||
      chosen.estimate.device_update < least_gain * chosen.estimate.seconds())
    return chosen;
  const double half = step_seconds(in, chosen.run, half_host, Verdicts::stand),
               clipped = step_seconds(in, chosen.run, 1, Verdicts::clip), before = chosen.estimate.seconds();
  PlacementInputs others = in;
  std::erase_if(others.residencies, [&](const Residency& residency) {
    return residency.casts_weights() != chosen.residency.casts_weights() ||
           residency.sends_masters() != chosen.residency.sends_masters() ||
           residency.moves_gradients() != chosen.residency.moves_gradients();
  });
  const int most = chosen.device_units;
  for (int part = parts - 1; part >= 0; --part) {
    others.forced_device_units = most * part / parts;
    try {
      ChosenPlan other = choose_placement(others);
      if (step_seconds(in, other.run, half_host, Verdicts::stand) > rounding * half ||
          step_seconds(in, other.run, 1, Verdicts::clip) > rounding * clipped)
        break;  // what follows has more on the host still
      if (other.estimate.seconds() > (1 - least_gain) * before || other.estimate.seconds() >= chosen.estimate.seconds())
        continue;
      other.why_split = describe_split(in, other.device_units) +
                        fmt::format(
                            ": there AdamW is hidden, also if the host is half as fast or all steps are "
                            "clipped, and with more on the device it would take {:.3f} s a step, not {:.3f}",
                            before, other.estimate.seconds());
      chosen = std::move(other);
    } catch (const NothingFits&) {
      break;
    }
  }
  return chosen;
}

}  // namespace so
