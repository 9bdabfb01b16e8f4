// A plan lists the alternatives that it chose among.
#include "plan/placement/alternatives.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/gpu_rates.h"
#include "plan/placement/placement.h"
#include "support/errors.h"

namespace so::test {
namespace {

constexpr std::int64_t layer = 200'000'000, bucket = 16'000'000;
constexpr std::size_t activations_of_a_layer = 1'000'000'000;

// Twelve layers and embeddings, of whose state about a third fits the device.
PlacementInputs inputs() {
  PlacementInputs in;
  in.rates = gpu_rates();
  in.bucket_elements = bucket;
  in.spare_place_bytes = 12 * bucket;
  for (int u = 0; u < 14; ++u) {
    const double forward = u == 0 ? 0 : 2.0 * layer * 16'000;
    in.units.push_back({layer, forward, 2 * forward});
  }
  for (int dropped = 0; dropped <= 12; ++dropped) {
    Recomputation again{std::vector<double>(14), std::vector<double>(14), {}};
    for (std::size_t u = 1; u <= static_cast<std::size_t>(dropped); ++u) again.flops[u] = in.units[u].forward_flops;
    in.keeps.push_back(again);
  }
  in.activation_bytes = [](std::int64_t keep) { return activations_of_a_layer * static_cast<std::size_t>(13 - keep); };
  in.memory = [](const Choice& choice) {
    const int d = choice.device_units;
    StateMemory m;
    for (int u = 0; u < 14; ++u) {
      m.device_bytes += 4 * layer;
      (u < d ? m.device_bytes : m.host_bytes) += 12 * layer;
      if (u >= d && choice.move_gradients) m.device_bytes -= 2 * layer;
      if (u >= d && choice.move_gradients) m.host_bytes += 2 * layer;
    }
    m.device_bytes -= static_cast<std::size_t>(choice.streamed_units) * 2 * layer;
    return m;
  };
  in.residencies = {{}, {.move_gradients = true}};
  in.device_budget = 14 * 4 * layer + 13 * activations_of_a_layer + 5 * 12 * layer;
  in.host_budget = in.spare_budget = std::size_t{1} << 40;
  return in;
}

std::vector<Alternative> explain(const PlacementInputs& in, const ChosenPlan& plan, PlanChoice choice,
                                 const PlacementInputs* other = nullptr) {
  return alternatives(
      in, plan, choice, [](std::int64_t keep) { return "keep " + std::to_string(keep); }, other);
}

TEST(Alternatives, OfEveryChoiceOneWasChosen) {
  const PlacementInputs in = inputs();
  const ChosenPlan plan = choose_placement(in);
  ASSERT_GT(plan.device_units, 0);
  ASSERT_LT(plan.device_units, 14);
  PlacementInputs other = in;
  other.bytes.gradient = other.bytes.weight = 4;
  for (const PlanChoice choice : plan_choices()) {
    if (!is_open(choice, 1)) continue;
    SCOPED_TRACE(name_of(choice));
    const std::vector<Alternative> all = explain(in, plan, choice, &other);
    ASSERT_GE(all.size(), 2u);
    const auto is_chosen = [](const Alternative& a) { return a.chosen; };
    ASSERT_EQ(std::count_if(all.begin(), all.end(), is_chosen), 1);
    const Alternative& chosen = *std::find_if(all.begin(), all.end(), is_chosen);
    EXPECT_TRUE(chosen.fits());
    EXPECT_NEAR(chosen.seconds, plan.estimate.seconds(), 1e-9);
    EXPECT_GT(chosen.device_bytes, 0u);
    // No alternative that fits has a better score, but for what counts as equal and what another number of places,
    // which is not searched for, makes.
    for (const Alternative& a : all) {
      if (!a.fits()) continue;
      EXPECT_GE(a.score, 0.99 * chosen.score) << a.what;
    }
    EXPECT_EQ(std::count_if(all.begin(), all.end(), [](const Alternative& a) { return a.what.empty(); }), 0);
    const std::string table = alternatives_table(all, 200);
    EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), std::ssize(all));
    expect_in(table, {"  > " + chosen.what, "chosen"});
  }
}

TEST(Alternatives, SayByHowMuchTheyDoNotFit) {
  const PlacementInputs in = inputs();
  const ChosenPlan plan = choose_placement(in);
  const std::vector<Alternative> all = explain(in, plan, PlanChoice::split);
  const Alternative& most = all.back();
  EXPECT_EQ(most.what, "14 of 14 units on the device");
  // All the state, and of activations the least: 16 bytes an element and 1 GB.
  const std::size_t needed = 14 * 16 * layer + activations_of_a_layer;
  EXPECT_EQ(most.device_short, needed - in.device_budget);
  expect_in(why_not(most, all.front()), {"does not fit", "device memory short"});
  EXPECT_TRUE(all.front().fits());
  EXPECT_EQ(all.front().what, "0 of 14 units on the device");
}

TEST(Alternatives, SayByHowMuchTheyAreSlower) {
  Alternative chosen, slower, equal, quicker;
  chosen.seconds = equal.seconds = 2;
  slower.seconds = 2.125;
  quicker.seconds = 1.75;
  EXPECT_EQ(why_not(slower, chosen), "0.125 s slower");
  EXPECT_EQ(why_not(equal, chosen), "no quicker");
  expect_in(why_not(quicker, chosen), {"0.250 s quicker", "only because"});
  quicker.slower_seconds = 0.5;
  EXPECT_EQ(why_not(quicker, chosen), "0.250 s quicker, but 0.500 s slower if the host is");
  quicker.score = -1;
  expect_in(why_not(quicker, chosen), {"0.250 s quicker", "outside of what was asked"});
  slower.host_short = 3'000'000'000;
  EXPECT_EQ(why_not(slower, chosen), "does not fit: 3.0 GB of host memory short");
}

// More streamed units, less memory; behind a slow link, more time.
TEST(Alternatives, OfStreaming) {
  PlacementInputs in = inputs();
  in.rates.link_to_device = 5e9;
  const ChosenPlan plan = choose_placement(in);
  const std::vector<Alternative> all = explain(in, plan, PlanChoice::streaming);
  ASSERT_GE(all.size(), 5u);
  EXPECT_TRUE(all.front().chosen);
  EXPECT_GT(all.back().seconds, 1.1 * all.front().seconds);
}

}  // namespace
}  // namespace so::test
