// What a run's steps say of the machine is kept for the next plan, which then expects what was measured.
#include "plan/learned_rates.h"

#include <gtest/gtest.h>

#include "plan/placement/step_estimate.h"
#include "support/errors.h"
#include "support/files.h"

namespace so::test {
namespace {

constexpr std::time_t now = 1'760'000'000;

TrainingPlan some_plan(double link_seconds = 0) {
  TrainingPlan plan;
  plan.engine.formats = model_formats(DType::bf16);
  plan.rates = {.link_to_host = 50e9,
                .link_to_device = 55e9,
                .host_adamw = 140e9,
                .host_adamw_wide = 130e9,
                .host_memory = 180e9};
  plan.estimate.emplace();
  plan.estimate->times = {.update_seconds = 0.2e-9, .link_seconds = link_seconds};
  return plan;
}

TEST(LearnedRates, AreThoseWithWhichThePlanWouldHaveBeenRight) {
  const auto learned = learn_rates(some_plan(), {.update_seconds = 0.25e-9}, 40);
  ASSERT_TRUE(learned);
  EXPECT_DOUBLE_EQ(learned->host_adamw, 112e9);
  EXPECT_DOUBLE_EQ(learned->host_adamw_wide, 104e9);
  EXPECT_DOUBLE_EQ(learned->host_memory, 144e9);
  EXPECT_EQ(learned->link_both, 0);
  EXPECT_EQ(learned->source, "40 steps of a run");
  expect_in(describe(*learned, some_plan().rates),
            {"AdamW on the host ran at 112 GB/s, planned 140 (-20.0%)", "transfers at 144 GB/s, planned 180 (-20.0%)"});
  EXPECT_GT(learn_rates(some_plan(), {.update_seconds = 0.15e-9}, 40)->host_adamw, 180e9) << "quicker is learned too";
}

TEST(LearnedRates, ThereAreNoneWherePlansAreRightOrNothingWasMeasured) {
  EXPECT_FALSE(learn_rates(some_plan(), {.update_seconds = 0.205e-9}, 40));
  EXPECT_FALSE(learn_rates(some_plan(), {}, 40)) << "the host updates nothing";
  EXPECT_FALSE(learn_rates(some_plan(), {.update_seconds = 2e-9}, 40)) << "no machine becomes ten times slower";
  TrainingPlan plan = some_plan();
  plan.estimate.reset();
  EXPECT_FALSE(learn_rates(plan, {.update_seconds = 0.3e-9}, 40)) << "the CPU device";
}

// The simulator has the last word: planned by what was learned, an update takes as long as it did.
TEST(LearnedRates, MakeTheNextPlanExpectWhatWasMeasured) {
  SimulatedRun run{
      .units = std::vector<SimulatedUnit>(10, {.elements = 100'000'000, .forward = 0.03, .backward = 0.06}),
      .bucket_elements = 4'000'000,
      .undo_buckets = 100,
      .link_to_host = 50e9,
      .link_to_device = 55e9,
      .host_memory = 180e9,
      .host_adamw = 140e9};
  TrainingPlan plan = some_plan();
  plan.estimate->times = Simulator(run).settle().times;
  const double measured = 1.3 * plan.estimate->times.update_seconds;
  const auto learned = learn_rates(plan, {.update_seconds = measured}, 40);
  ASSERT_TRUE(learned);
  run.host_adamw = learned->host_adamw;
  run.host_memory = learned->host_memory;
  EXPECT_NEAR(Simulator(run).settle().times.update_seconds, measured, 0.05 * measured);
}

// The same where the device updates some of the state.
struct SharedMemory {
  SimulatedRun run{
      .units = std::vector<SimulatedUnit>(10, {.elements = 100'000'000, .forward = 0.01, .backward = 0.02}),
      .update_over_link = true,
      .bucket_elements = 4'000'000,
      .undo_buckets = 100,
      .link_to_host = 50e9,
      .link_to_device = 55e9,
      .host_memory = 185e9,
      .host_adamw = 120e9};
  TrainingPlan plan = some_plan();
  SharedMemory() {
    plan.rates.host_adamw = run.host_adamw;
    plan.rates.host_memory = run.host_memory;
    plan.run = run;
    plan.estimate->times = Simulator(run).settle().times;
  }
  // What is learned of a machine that is another one, with which the next plan expects what was measured.
  LearnedRates learn(const SimulatedRun& real) {
    const StepTimes measured = Simulator(real).settle().times;
    const auto learned = learn_rates(plan, measured, 40);
    EXPECT_TRUE(learned);
    SimulatedRun next = run;
    next.host_adamw = learned->host_adamw;
    next.host_memory = learned->host_memory;
    if (learned->link_both > 0) next.link_both = learned->link_both;
    const StepTimes times = Simulator(next).settle().times;
    EXPECT_NEAR(times.update_seconds, measured.update_seconds, 0.05 * measured.update_seconds);
    EXPECT_NEAR(times.link_seconds, measured.link_seconds, 0.05 * measured.link_seconds);
    return *learned;
  }
};

// The processors get more of the memory than an equal part, and the link gets less.
TEST(LearnedRates, OfAHostThatLeavesTheLinkLittle) {
  SharedMemory shared;
  SimulatedRun real = shared.run;
  real.host_adamw = 140e9;
  real.link_both = 60e9;
  const LearnedRates learned = shared.learn(real);
  EXPECT_LT(learned.host_memory, 1.1 * real.host_memory) << "the memory is not quicker";
  expect_in(describe(learned, shared.plan.rates), {"the link, both ways at once, at ", "planned 100 (-"});
}

TEST(LearnedRates, OfTheLinkAreWhatTheHostsMemoryDoesNotExplain) {
  SharedMemory shared;
  SimulatedRun real = shared.run;
  real.host_memory *= 0.75;
  EXPECT_EQ(shared.learn(real).link_both, 0) << "both became slower: that is the memory";
  StepTimes quicker = shared.plan.estimate->times;
  EXPECT_FALSE(learn_rates(shared.plan, quicker, 40));
  quicker.link_seconds *= 0.8;
  EXPECT_FALSE(learn_rates(shared.plan, quicker, 40)) << "never quicker than planned";
}

TEST(LearnedRates, AreKeptWhereRatesAre) {
  const TemporaryDirectory directory;
  const RateCache cache(directory / "rates");
  const RateKey key{"NVIDIA H200", "Xeon", 15, "0.1", "bfloat16", "float32"};
  const TrainingPlan plan = some_plan();
  const LearnedRates learned = *learn_rates(plan, {.update_seconds = 0.25e-9}, 40);
  expect_in(keep_learned(learned, plan, cache, key, now), {"ran at 112 GB/s", "not kept, since there is no file"});
  cache.store(key, resolve_hardware("h200"), now);
  expect_in(keep_learned(learned, plan, cache, key, now), {"ran at 112 GB/s", "kept for the next plan"});
  EXPECT_EQ(cache.find(key, now)->rates.host_adamw, learned.host_adamw);
}

}  // namespace
}  // namespace so::test
