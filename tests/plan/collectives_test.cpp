// Steps of several ranks played in virtual time, against the same worked out by hand.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "plan/placement/step_estimate.h"
#include "plan/simulate/host_bandwidth.h"
#include "plan/simulate/simulator.h"
#include "plan/simulate/timeline.h"
#include "plan/simulated_steps.h"
#include "support/errors.h"

namespace so::test {
namespace {

double waited_for(const SimulatedStep& step, WaitReason reason) { return step.waits[static_cast<std::size_t>(reason)]; }

// Two units that the device owns, whose update takes no time: a second forward and two backward each.
CountedRun two_units(double reduce, double gather) {
  CountedRun run;
  run.units.assign(2, {1000, 1, 2, reduce, gather});
  run.placement.ranks = 2;
  run.counts.device_units = 2;
  run.placement.bucket_elements = 1000;
  run.link_to_host = run.link_to_device = 2000;
  run.host_memory = 28'000;
  return run;
}

// Leaves every bucket for after the verdict.
class LeavingPolicy final : public UpdatePolicy {
 public:
  UpdateChoice choose(const UpdateFacts& facts) override {
    const std::size_t n = facts.elements.size();
    return {std::vector(n, Ahead::leave), std::vector(n, After::in_place), std::vector(n, After::in_place)};
  }
};

void expect_whole(const SimulatedStep& step) {
  EXPECT_NEAR(std::accumulate(step.waits.begin(), step.waits.end(), step.device), step.seconds, 1e-9 * step.seconds);
}

// The first gather, with which the step begins, and the last reduction, with which it ends, cannot hide.
TEST(Collectives, HideUnderTheOtherUnitsWork) {
  const SimulatedStep step = Simulator(two_units(1, 0.5).of()).settle();
  EXPECT_NEAR(step.device, 6, 1e-9);
  EXPECT_NEAR(waited_for(step, WaitReason::link), 0.5, 1e-9);
  EXPECT_NEAR(waited_for(step, WaitReason::verdict), 1, 1e-9);
  EXPECT_NEAR(step.seconds, 7.5, 1e-9);
  EXPECT_NEAR(step.collectives, 2 * 1 + 2 * 0.5, 1e-9);
  EXPECT_NEAR(step.collective_waits, 1.5, 1e-9);
  expect_whole(step);
}

// The first gradient is complete at 4.5 s; then two reductions of 5 s, one after the other.
TEST(Collectives, BoundTheStepWhereReductionsAreSlow) {
  const SimulatedStep step = Simulator(two_units(5, 0.5).of()).settle();
  EXPECT_NEAR(step.seconds, 4.5 + 2 * 5, 1e-9);
  EXPECT_NEAR(waited_for(step, WaitReason::verdict), 8, 1e-9);
  EXPECT_NEAR(step.collective_waits, 8.5, 1e-9);
  expect_whole(step);
}

// Both gathers, of 4 s each, then what is left: a forward, two backward, the last reduction.
TEST(Collectives, BoundTheStepWhereGathersAreSlow) {
  const SimulatedStep step = Simulator(two_units(1, 4).of()).settle();
  EXPECT_NEAR(step.seconds, 2 * 4 + 1 + 2 * 2 + 1, 1e-9);
  EXPECT_NEAR(waited_for(step, WaitReason::link), 4 + 3, 1e-9);
  expect_whole(step);
}

TEST(Collectives, ComeOnceAStepWhateverTheMicroBatches) {
  CountedRun run = two_units(1, 0.5);
  for (const std::int64_t micro_batches : {2, 9}) {
    run.micro_batches = micro_batches;
    const SimulatedStep step = Simulator(run.of()).settle();
    EXPECT_NEAR(step.seconds, 0.5 + 6 * static_cast<double>(micro_batches) + 1, 1e-9);
    EXPECT_NEAR(step.collectives, 3, 1e-9);
  }
}

// The unit's sums, their way to the host, the update, the way back and the gather, in turn.
TEST(Collectives, StandBetweenTheGradientAndTheHostAndBetweenTheHostAndForward) {
  for (const Schedule schedule : {Schedule::synchronous, Schedule::overlapped}) {
    CountedRun run = two_units(2, 1);
    run.units.assign(1, {1000, 3, 5, 2, 1});
    run.counts.device_units = 0;
    run.placement.schedule = schedule;
    const SimulatedStep step = Simulator(run.of(), std::make_unique<LeavingPolicy>()).settle();
    EXPECT_NEAR(step.seconds, 2 + 1 + 1 + 1 + 1 + 3 + 5, 1e-9);
    EXPECT_NEAR(waited_for(step, WaitReason::host), 2, 1e-9);
    EXPECT_NEAR(waited_for(step, WaitReason::link), 2, 1e-9);
    EXPECT_NEAR(waited_for(step, WaitReason::verdict), 2, 1e-9);
    EXPECT_NEAR(step.collective_waits, 3, 1e-9);
    EXPECT_NEAR(step.host[static_cast<std::size_t>(HostTime::adamw)], 1, 1e-9);
    expect_whole(step);
  }
}

// Of five units the inner three are gathered, and take two places in turn.
CountedRun three_gathered(double reduce, double gather, std::int64_t micro_batches = 1) {
  CountedRun run = two_units(reduce, gather);
  run.units.assign(5, {1000, 1, 2, reduce, gather});
  run.counts.device_units = 5;
  run.counts.gathered_units = 3;
  run.micro_batches = micro_batches;
  return run;
}

// The third is gathered when the first has been used; backward finds the second and the third there, and gathers the
// first when the third is done.
TEST(GatheredUnits, AreGatheredAheadOfEachUse) {
  for (const std::int64_t micro_batches : {1, 2, 9}) {
    SCOPED_TRACE(micro_batches);
    const auto n = static_cast<double>(micro_batches);
    const CountedRun run = three_gathered(1, 0.5, micro_batches);
    const SimulatedStep step = Simulator(run.of()).settle();
    EXPECT_NEAR(step.seconds, 0.5 + 15 * n + 1, 1e-9);
    EXPECT_NEAR(waited_for(step, WaitReason::link), 0.5, 1e-9);
    EXPECT_NEAR(waited_for(step, WaitReason::verdict), 1, 1e-9);
    // Later passes find two of the three there; reductions are of every micro-batch, those of the other two of the
    // last.
    EXPECT_NEAR(step.collectives, 0.5 * (5 + 1 + 2 * (n - 1)) + 1 * (3 * n + 2), 1e-9);
    EXPECT_NEAR(step.collective_waits, 1.5, 1e-9);
    EXPECT_LE(least_seconds(run.of()), step.seconds);
    expect_whole(step);
  }
}

// The second unit's input is made again: when the third is done, the first is gathered, and runs forward, before the
// second goes backward.
TEST(GatheredUnits, AreGatheredForForwardPassesInBackward) {
  CountedRun run = three_gathered(1, 0.5);
  run.remade = {2};
  const SimulatedStep step = Simulator(run.of()).settle();
  EXPECT_NEAR(step.seconds, 0.5 + 15 + 0.5 + 1 + 1, 1e-9);
  EXPECT_NEAR(waited_for(step, WaitReason::stream), 0.5, 1e-9);
  EXPECT_NEAR(step.collectives, 0.5 * (5 + 1) + 5, 1e-9);
  EXPECT_LE(least_seconds(run.of()), step.seconds);
  expect_whole(step);
}

// Gathers of 4 s: the third begins when the first unit has been used and the lane is free, at 12 s; the first of
// backward at 25 s, when the third unit is done.
TEST(GatheredUnits, BoundTheStepWhereGathersAreSlow) {
  const SimulatedStep step = Simulator(three_gathered(1, 4).of()).settle();
  EXPECT_NEAR(step.seconds, 34, 1e-9);
  EXPECT_NEAR(waited_for(step, WaitReason::stream), 3 + 3 + 3 + 2, 1e-9);
  EXPECT_NEAR(waited_for(step, WaitReason::link), 4 + 3, 1e-9);
  EXPECT_NEAR(step.collective_waits, 11 + 7 + 1, 1e-9);
  expect_whole(step);
  // Each micro-batch more has two gathers, of the third unit forward and of the first backward, and waits for both.
  const double two = Simulator(three_gathered(1, 4, 2).of()).settle().seconds,
               nine = Simulator(three_gathered(1, 4, 9).of()).settle().seconds;
  EXPECT_NEAR(nine - two, 7 * (two - step.seconds), 1e-6);
  EXPECT_GT(two - step.seconds, 15);
}

// The first unit's gradient needs the place of the third's, which is reduced from 12.5 to 17.5 s.
// The host updates in no time. Weights of the two units that are whole are sent, half a second each; the others'
// masters travel for a second ahead of a gather of half a second: those of the first when the first unit's weights are
// there, at 1 s, so it is used at 2.5; the second at 4, the third at 5.5. In backward the first has its unit's time.
TEST(GatheredUnits, TheirMastersTravelAheadOfEachGather) {
  CountedRun run = three_gathered(1, 0.5);
  run.counts.device_units = 0;
  run.host_memory = run.link_to_host = 1e15;
  run.link_to_device = 4000;
  run.counts.send_masters = true;
  const SimulatedStep step = Simulator(run.of(), std::make_unique<LeavingPolicy>()).settle();
  EXPECT_NEAR(step.seconds, 18.5, 1e-6);
  EXPECT_NEAR(waited_for(step, WaitReason::stream), 3 * 0.5, 1e-6);
  EXPECT_LE(least_seconds(run.of()), step.seconds);
  expect_whole(step);
  // Whatever the policy wants, no weights are made ahead of their state.
  run.placement.spare_buckets = 2;
  Simulator any(run.of());
  any.settle();
  EXPECT_EQ(any.counters().previewed + any.counters().updated_weights_first, 0);
  run.counts.send_masters = false;
  EXPECT_LT(Simulator(run.of(), std::make_unique<LeavingPolicy>()).settle().seconds, step.seconds - 1);
}

TEST(GatheredUnits, WaitForThePlaceOfAGradientThatIsReduced) {
  const CountedRun run = three_gathered(5, 0.5);
  const SimulatedStep step = Simulator(run.of()).settle();
  EXPECT_NEAR(step.seconds, 32.5, 1e-9);
  EXPECT_NEAR(waited_for(step, WaitReason::gradient), 6, 1e-9);
  EXPECT_NEAR(waited_for(step, WaitReason::verdict), 11, 1e-9);
  EXPECT_NEAR(step.collective_waits, 0.5 + 6 + 11, 1e-9);
  EXPECT_LE(least_seconds(run.of()), step.seconds);
  expect_whole(step);
}

TEST(GatheredUnits, WaitForTheHostThatUpdatesThem) {
  CountedRun run = three_gathered(1, 0.5);
  run.counts.device_units = 0;
  const SimulatedStep step = Simulator(run.of(), std::make_unique<LeavingPolicy>()).settle();
  // The first unit's sums, at the end of backward; its way there, update and way back, and its gather.
  EXPECT_GE(step.seconds, 15 + 1 + 1 + 1 + 1 + 0.5);
  EXPECT_GT(waited_for(step, WaitReason::host), 0);
  expect_whole(step);
}

// Seven units, of whose gradients those of the inner five move: two of them share one of the four places, so the fifth
// is reduced when the first has left, by a link that takes 8 s for each. Backward: 2 s a unit, a reduction half of one.
TEST(MovedOnRanks, AReductionWaitsForTheGradientThatLeavesItsPlace) {
  CountedRun run = two_units(0.5, 0);
  run.units.assign(7, {1000, 1, 2, 0.5, 0});
  run.counts.device_units = 0;
  run.bytes.gradient = 4;
  run.link_to_host = 500;
  const SimulatedStep stays = Simulator(run.of(), std::make_unique<LeavingPolicy>()).settle();
  EXPECT_NEAR(waited_for(stays, WaitReason::verdict), 0.5, 1e-9) << "for the last reduction";
  run.counts.move_gradients = true;
  const SimulatedStep moves = Simulator(run.of(), std::make_unique<LeavingPolicy>()).settle();
  // The top unit's leaves from 2.5 to 10.5 s, the next one's until 18.5 s; then the second unit's reduction, and the
  // first's, which has a place of its own. Backward has ended at 14 s.
  EXPECT_NEAR(waited_for(moves, WaitReason::verdict), 18.5 + 2 * 0.5 - 14, 1e-9);
  EXPECT_NEAR(waited_for(moves, WaitReason::gradient), 0, 1e-9);
  EXPECT_LE(least_seconds(run.of()), moves.seconds);
  expect_whole(moves);
  // With a second micro-batch every backward pass has its reductions, and the sums that share a place come back.
  run.micro_batches = 2;
  run.link_to_host = run.link_to_device = 2e9;
  const SimulatedStep twice = Simulator(run.of(), std::make_unique<LeavingPolicy>()).settle();
  EXPECT_NEAR(twice.collectives, 0.5 * (5 * 2 + 2), 1e-9);
  EXPECT_NEAR(waited_for(twice, WaitReason::verdict), 0.5, 1e-3);
  EXPECT_LE(least_seconds(run.of()), twice.seconds);
  expect_whole(twice);
}

TEST(Collectives, AreSeenInTheTimeline) {
  Simulator simulator(two_units(1, 0.5).of());
  simulator.settle();
  const SimulatedTimeline timeline = simulator.timeline();
  expect_in(sketch(timeline, 15), {"GPU |LffffbbbbbbbbVV|v\n", "RED |         rr  rr|\n", "GTH |tt             |\n",
                                   "gradients are summed over GPUs", "weights are gathered from all GPUs"});
  const Trace trace = to_trace(timeline);
  ASSERT_EQ(trace.tracks.size(), 6u);
  EXPECT_EQ(trace.tracks[4].name, "reduce");
  EXPECT_EQ(trace.tracks[5].name, "gather");
}

TEST(Collectives, CopiesBothWaysShareTheLink) {
  constexpr double unlimited = std::numeric_limits<double>::infinity();
  const HostBandwidth bandwidth(1000, {unlimited, 50, 40}, 60);
  const std::size_t host = 1, to_host = 2, to_device = 4;
  EXPECT_EQ(bandwidth.rates(to_host)[1], 50);
  EXPECT_EQ(bandwidth.rates(to_device)[2], 40);
  EXPECT_EQ(bandwidth.rates(to_host | to_device), (BandwidthRates{0, 30, 30}));
  EXPECT_EQ(bandwidth.rates(host | to_host | to_device), (BandwidthRates{940, 30, 30}));
}

// A unit of 4,000 elements in buckets of 1,000 over four ranks.
TEST(Collectives, ARanksStepHasItsSliceAndReceivesTheOthers) {
  PlacementInputs in;
  in.rates = {
      .gemm_flops = 1, .device_memory = 1, .link_to_host = 1, .link_to_device = 1, .host_adamw = 1, .host_memory = 1};
  in.rates.collectives = {.bytes = 1000, .seconds = 0.25};
  in.rates.link_both = 1.5;
  in.units.assign(1, {.elements = 4000});
  in.keeps.assign(1, {{0}, {0}, {}});
  in.bucket_elements = 1000;
  in.bytes.gradient = 4;
  const SimulatedRun one = simulated_run(in, {.spare_buckets = 3});
  EXPECT_EQ(one.units[0].elements, 4000);
  EXPECT_EQ(one.units[0].reduce, 0);
  EXPECT_EQ(one.units[0].gather, 0);
  in.ranks = 4;
  const SimulatedRun four = simulated_run(in, {.spare_buckets = 3});
  EXPECT_EQ(four.units[0].elements, 1000);
  EXPECT_EQ(four.placement.bucket_elements, 250);
  EXPECT_EQ(four.placement.spare_buckets, 3);
  EXPECT_EQ(four.link_both, 1.5);
  EXPECT_NEAR(four.units[0].reduce, 4 * 0.25 + 3 * 4000 / 1000.0, 1e-9) << "three quarters of the gradients, in fp32";
  EXPECT_NEAR(four.units[0].gather, 0.25 + 3 * 2000 / 1000.0, 1e-9) << "and of the weights, in bf16, in one call";
  EXPECT_GE(least_seconds(four), four.units[0].reduce);
}

}  // namespace
}  // namespace so::test
