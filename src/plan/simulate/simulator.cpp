#include "plan/simulate/simulator.h"

#include <array>
#include <cmath>
#include <utility>

#include "plan/simulate/step_play.h"

namespace so {
namespace {

constexpr int most_steps = 12;  // to the steady state
constexpr double same_step = 1e-5;

// All of a step that a mean is taken of; the compiler counts them.
constexpr std::array parts{&SimulatedStep::seconds,     &SimulatedStep::device,          &SimulatedStep::host_bytes,
                           &SimulatedStep::speculated,  &SimulatedStep::previewed,       &SimulatedStep::over_link,
                           &SimulatedStep::collectives, &SimulatedStep::collective_waits};
static_assert(sizeof(SimulatedStep) ==
              parts.size() * sizeof(double) + sizeof(WaitSeconds) + sizeof(StepTimes) + sizeof(HostSeconds));

}  // namespace

Simulator::Simulator(SimulatedRun run, std::unique_ptr<UpdatePolicy> policy)
    : play_(std::make_unique<StepPlay>(std::move(run), std::move(policy))) {}
Simulator::~Simulator() = default;

SimulatedStep Simulator::step() {
  const SimulatedStep now = play_->step();
  ++played_;
  seconds_ = now.seconds;
  return now;
}

SimulatedStep Simulator::settle() {
  SimulatedStep sum;
  int counted = 0;
  const int most = std::max(most_steps, played_ + most_steps / 2);
  while (played_ < most) {
    const double before = seconds_;
    const SimulatedStep now = step();
    const bool repeats = !play_->choice_is_new() && std::abs(now.seconds - before) <= same_step * now.seconds;
    if (repeats) return now;
    if (played_ <= most - most_steps / 2) continue;
    ++counted;
    for (double SimulatedStep::*part : parts) sum.*part += now.*part;
    sum.times = now.times;
    for (std::size_t t = 0; t < host_times; ++t) sum.host[t] += now.host[t];
    for (std::size_t r = 0; r < wait_reasons; ++r) sum.waits[r] += now.waits[r];
  }
  for (double SimulatedStep::*part : parts) sum.*part /= counted;
  for (double& seconds : sum.host) seconds /= counted;
  for (double& seconds : sum.waits) seconds /= counted;
  return sum;
}

SimulatedTimeline Simulator::timeline() { return play_->timeline(); }
const HostCounters& Simulator::counters() const { return play_->counters(); }
std::size_t Simulator::pieces() const { return play_->pieces(); }

}  // namespace so
