#include "plan/simulate/simulator.h"

#include <cmath>
#include <utility>

#include "plan/simulate/step_play.h"

namespace so {
namespace {

constexpr int most_steps = 12;  // to the steady state
constexpr double same_step = 1e-5;

}  // namespace

Simulator::Simulator(SimulatedRun run, std::unique_ptr<UpdatePolicy> policy)
    : play_(std::make_unique<StepPlay>(std::move(run), std::move(policy))) {}
Simulator::~Simulator() = default;

SimulatedStep Simulator::step() { return play_->step(); }

SimulatedStep Simulator::settle() {
  SimulatedStep sum;
  double before = -1;
  int counted = 0;
  for (int i = 0; i < most_steps; ++i) {
    const SimulatedStep now = play_->step();
    const bool repeats = !play_->choice_is_new() && std::abs(now.seconds - before) <= same_step * now.seconds;
    before = now.seconds;
    if (repeats) return now;
    if (i < most_steps / 2) continue;
    ++counted;
    sum.seconds += now.seconds;
    sum.device += now.device;
    sum.host_bytes += now.host_bytes;
    sum.speculated += now.speculated;
    sum.previewed += now.previewed;
    sum.times = now.times;
    sum.collectives += now.collectives;
    sum.collective_waits += now.collective_waits;
    for (std::size_t t = 0; t < host_times; ++t) sum.host[t] += now.host[t];
    for (std::size_t r = 0; r < wait_reasons; ++r) sum.waits[r] += now.waits[r];
  }
  for (double* value : {&sum.seconds, &sum.device, &sum.host_bytes, &sum.speculated, &sum.previewed, &sum.collectives,
                        &sum.collective_waits})
    *value /= counted;
  for (double& seconds : sum.host) seconds /= counted;
  for (double& seconds : sum.waits) seconds /= counted;
  return sum;
}

SimulatedTimeline Simulator::timeline() { return play_->timeline(); }
const HostCounters& Simulator::counters() const { return play_->counters(); }
std::size_t Simulator::pieces() const { return play_->pieces(); }

}  // namespace so
