// Runs that are small enough to be worked out by hand, and what tests of the simulator ask of their steps.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <numeric>
#include <vector>

#include "plan/simulate/simulator.h"

namespace so::test {

inline double waited(const SimulatedStep& step, WaitReason reason) {
  return step.waits[static_cast<std::size_t>(reason)];
}
inline double spent(const SimulatedStep& step, HostTime time) { return step.host[static_cast<std::size_t>(time)]; }

// Both sides' parts make up the step.
inline void expect_sums(const SimulatedStep& step) {
  EXPECT_NEAR(std::accumulate(step.host.begin(), step.host.end(), 0.0), step.seconds, 1e-9 * step.seconds);
  EXPECT_NEAR(step.overlap().device_work(), step.device, 1e-9 * step.seconds);
}

// The same for every bucket and step.
class FixedPolicy final : public UpdatePolicy {
 public:
  FixedPolicy(Ahead ahead, After after) : ahead_(ahead), after_(after) {}
  UpdateChoice choose(const UpdateFacts& facts) override {
    const std::size_t n = facts.elements.size();
    return {std::vector(n, ahead_), std::vector(n, after_), std::vector(n, after_)};
  }

 private:
  Ahead ahead_;
  After after_;
};
inline std::unique_ptr<UpdatePolicy> always(Ahead ahead, After after = After::in_place) {
  return std::make_unique<FixedPolicy>(ahead, after);
}

// A run as tests say it: by numbers of units, of which the rows of a placement are made.
struct CountedRun : SimulatedRun {
  Counts counts;
  std::vector<int> remade;  // units whose inputs are

  SimulatedRun of() const {
    std::vector<Input> inputs(units.size(), Input::kept);
    for (const int unit : remade) inputs[static_cast<std::size_t>(unit)] = Input::remade;
    std::vector<Trained> trained;
    for (const SimulatedUnit& unit : units)
      trained.push_back(unit.elements == 0 ? Trained::none : unit.frozen == 0 ? Trained::all : Trained::some);
    SimulatedRun run = *this;
    run.placement.units = make_rows(trained, placement.ranks, counts, inputs);
    return run;
  }
};

// Units of a thousand elements, each one bucket: its gradient and its weights take a second on the link, its update,
// 28 bytes an element, one of the host.
inline CountedRun seconds_each(int units, double forward, double backward) {
  CountedRun run;
  run.units.assign(static_cast<std::size_t>(units), {1000, forward, backward});
  run.placement.bucket_elements = 1000;
  run.link_to_host = run.link_to_device = 2000;
  run.host_memory = 28'000;
  return run;
}

}  // namespace so::test
