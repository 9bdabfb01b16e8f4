// Simulated steps against measured ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "plan/simulate/simulator.h"
#include "plan/simulated_steps.h"

namespace so::test {
namespace {

// Steps that were measured on an H200 with 15 threads of a Xeon (as in step_time_test.cpp): what each was given, what
// its policy did, and how long it took. The bandwidth of the host's memory is what its updates and the copies beside
// moved.
struct Measured {
  const char* name;
  double elements, before;                // of the host; share of the model that the device owns
  double host_memory, forward, backward;  // bytes/s; seconds
  double speculated, previewed;           // shares of the host's buckets
  After after;
  double seconds;
};

// At the top what is left, then what is speculated; what is previewed at the bottom.
class SharesPolicy final : public UpdatePolicy {
 public:
  explicit SharesPolicy(const Measured& m) : m_(m) {}
  UpdateChoice choose(const UpdateFacts& facts) override {
    const std::size_t n = facts.elements.size();
    const auto count = [&](double share) { return static_cast<std::ptrdiff_t>(share * static_cast<double>(n) + 0.5); };
    UpdateChoice choice{std::vector(n, Ahead::leave), std::vector(n, m_.after), std::vector(n, m_.after)};
    std::fill_n(choice.ahead.begin(), count(m_.previewed), Ahead::preview);
    const std::ptrdiff_t top = m_.previewed > 0 ? count(1 - m_.speculated - m_.previewed) : 0;
    std::fill_n(choice.ahead.end() - top - count(m_.speculated), count(m_.speculated), Ahead::speculate);
    return choice;
  }

 private:
  const Measured m_;
};

class SimulatorMeasured : public testing::TestWithParam<Measured> {};

TEST_P(SimulatorMeasured, WithinEightPercent) {
  const Measured& m = GetParam();
  constexpr int units = 60;
  const double total = m.elements / (1 - m.before);
  CountedRun run;
  run.units.assign(units, {static_cast<std::int64_t>(total / units), m.forward / units, m.backward / units});
  run.counts.device_units = static_cast<int>(m.before * units + 0.5);
  run.placement.bucket_elements = 4'190'000;
  run.placement.spare_buckets = 2000;  // the policy has seen to it
  run.link_to_host = run.link_to_device = 55e9;
  run.host_memory = m.host_memory;
  const SimulatedStep step = Simulator(run.of(), std::make_unique<SharesPolicy>(m)).settle();
  EXPECT_NEAR(step.seconds / m.seconds, 1, 0.08);
}

INSTANTIATE_TEST_SUITE_P(H200, SimulatorMeasured,
                         testing::Values(Measured{"qwen3_14b", 8.363e9, 0.433, 32 / 0.225e-9, 0.78, 2.02, 191.0 / 1996,
                                                  927.0 / 1996, After::in_place, 2.81},
                                         Measured{"qwen3_14b_clipped", 9.05e9, 0.388, 32 / 0.196e-9, 0.75, 1.90, 0, 0,
                                                  After::weights_first, 3.615},
                                         Measured{"llama_8b", 7.289e9, 0.0925, 32 / 0.192e-9, 0.37, 0.90, 728.0 / 1765,
                                                  0, After::in_place, 1.725}),
                         [](const auto& i) { return i.param.name; });

}  // namespace
}  // namespace so::test
