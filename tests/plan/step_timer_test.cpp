// The policy's step timer and the simulator play the same rules (offload/schedule/host_schedule.h), the one in
// microseconds and without the link. Where the link and the host's memory are no limit they agree.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "offload/schedule/step_time.h"
#include "plan/simulated_steps.h"
#include "support/sanitized.h"

namespace so::test {
namespace {

// What a policy was asked last, and what it answered.
struct Asked {
  UpdateFacts facts;
  std::vector<std::int64_t> elements;
  std::vector<double> needed, left;
  UpdateChoice choice;
};

// The same for every bucket but those that are to be speculated and find no place: the lowest, which come last.
class EverywherePolicy final : public UpdatePolicy {
 public:
  EverywherePolicy(Ahead ahead, After after) : ahead_(ahead), after_(after) {}
  UpdateChoice choose(const UpdateFacts& facts) override {
    const std::size_t n = facts.elements.size();
    UpdateChoice choice{std::vector(n, ahead_), std::vector(n, after_), std::vector(n, after_)};
    if (ahead_ == Ahead::speculate)
      std::fill(choice.ahead.begin(), choice.ahead.end() - static_cast<std::ptrdiff_t>(facts.spare_places),
                Ahead::leave);
    return choice;
  }

 private:
  Ahead ahead_;
  After after_;
};

class RecordingPolicy final : public UpdatePolicy {
 public:
  RecordingPolicy(std::unique_ptr<UpdatePolicy> policy, Asked& asked) : policy_(std::move(policy)), asked_(asked) {}
  UpdateChoice choose(const UpdateFacts& facts) override {
    asked_.facts = facts;
    asked_.elements.assign(facts.elements.begin(), facts.elements.end());
    asked_.needed.assign(facts.needed.begin(), facts.needed.end());
    asked_.left.assign(facts.left.begin(), facts.left.end());
    asked_.facts.elements = asked_.elements;
    asked_.facts.needed = asked_.needed;
    asked_.facts.left = asked_.left;
    return asked_.choice = policy_->choose(facts);
  }

 private:
  const std::unique_ptr<UpdatePolicy> policy_;
  Asked& asked_;
};

// Layers of the same size between an embedding and a head, the first of them the device's; AdamW takes from a third of
// a pass to all of it.
SimulatedRun unlimited_run(std::mt19937& random) {
  const auto between = [&](double least, double most) { return std::uniform_real_distribution(least, most)(random); };
  CountedRun run;
  const int layers = 4 + static_cast<int>(random() % 20);
  run.units.assign(static_cast<std::size_t>(layers) + 2, {4'000'000, between(0.8, 1.2), between(1.6, 3)});
  run.units.front().elements = run.units.back().elements = 2'000'000;
  run.units.front().forward = 0.01;
  run.placement.bucket_elements = 100'000;
  run.counts.device_units = static_cast<int>(random() % static_cast<unsigned>(layers / 2));
  run.micro_batches = 1 + static_cast<std::int64_t>(random() % 3);
  run.placement.spare_buckets = static_cast<std::int64_t>(random() % static_cast<unsigned>(40 * layers));
  run.link_to_host = run.link_to_device = run.host_memory = 1e18;
  double owned = 0, pass = 0;
  for (std::size_t u = 0; u < run.units.size(); ++u) {
    pass += run.units[u].forward + run.units[u].backward;
    if (static_cast<int>(u) >= run.counts.device_units) owned += static_cast<double>(run.units[u].elements);
  }
  run.host_adamw = 28 * owned / (pass * between(0.3, 1.2));
  return run.of();
}

TEST(StepTimer, IsTheSimulatorWithoutTheLink) {
  for (unsigned seed = 0; seed < (sanitized ? 6 : 40); ++seed) {
    std::mt19937 random(seed);
    SimulatedRun run = unlimited_run(random);
    const auto compare = [&](const char* what, std::unique_ptr<UpdatePolicy> policy) {
      Asked asked;
      Simulator simulator(run, std::make_unique<RecordingPolicy>(std::move(policy), asked));
      const double played = simulator.settle().seconds;
      EXPECT_NEAR(step_time(asked.facts, asked.choice, run.verdicts) / played, 1, 0.01)
          << what << ", seed " << seed << (run.verdicts == Verdicts::clip ? ", clipped" : "");
    };
    for (const Verdicts verdicts : {Verdicts::stand, Verdicts::clip}) {
      run.verdicts = verdicts;
      compare("adaptive", make_adaptive_policy());
      for (const Ahead ahead : {Ahead::leave, Ahead::preview, Ahead::speculate})
        for (const After after : {After::in_place, After::weights_first})
          compare("everywhere", std::make_unique<EverywherePolicy>(ahead, after));
    }
  }
}

}  // namespace
}  // namespace so::test
