// Steps played in virtual time against the same worked out by hand.
#include "plan/simulate/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "plan/simulated_steps.h"
#include "support/label.h"

namespace so::test {
namespace {

TEST(Simulator, ADeviceAloneWorksAndDoesNotWait) {
  CountedRun run = seconds_each(2, 1, 2);
  run.counts.device_units = 2;
  run.device_update = 0.5;
  run.micro_batches = 3;
  Simulator simulator(run.of());
  const SimulatedStep step = simulator.settle();
  EXPECT_DOUBLE_EQ(step.seconds, 3 * (2 * 1 + 2 * 2) + 0.5);
  EXPECT_DOUBLE_EQ(step.device, step.seconds);
  EXPECT_EQ(step.host_bytes, 0);
  EXPECT_EQ(simulator.pieces(), 0u);
}

// Gradient, update and weights of one unit, in turn: the device waits for all of it, two seconds for the host to have
// the weights and one for the link to bring them.
TEST(Simulator, OneUnitOfTheHosts) {
  for (const Schedule schedule : {Schedule::synchronous, Schedule::overlapped}) {
    CountedRun run = seconds_each(1, 3, 5);
    run.placement.schedule = schedule;
    const SimulatedStep step = Simulator(run.of()).settle();
    EXPECT_NEAR(step.seconds, 3 + 5 + 1 + 1 + 1, 1e-9);
    EXPECT_NEAR(waited(step, WaitReason::host), 2, 1e-9);
    EXPECT_NEAR(waited(step, WaitReason::link), 1, 1e-9);
    EXPECT_NEAR(step.host_bytes, 1000 * (28 + 4), 1e-6);
    // The gradient comes, is used, and the next is complete at the end of the step.
    EXPECT_NEAR(spent(step, HostTime::fetch), 1, 1e-9);
    EXPECT_NEAR(spent(step, HostTime::adamw), 1, 1e-9);
    EXPECT_NEAR(spent(step, HostTime::gradient), 9, 1e-9);
    EXPECT_NEAR(step.overlap().efficiency(), 8.0 / 11, 1e-9);
    expect_sums(step);
  }
}

// Weights take 16 of the bytes, at 0.7 of the rate since they are hardly written, and the state that follows 26, with
// its gradient fetched again. Forward begins after 1 + 16/28/0.7 + 1 seconds; backward must wait for the state.
TEST(Simulator, StateThatFollowsHoldsUpBackward) {
  const SimulatedStep step =
      Simulator(seconds_each(1, 0.1, 1).of(), always(Ahead::leave, After::weights_first)).settle();
  const double weights = 16.0 / 28 / 0.7, state = 1 + weights + 1 + 26.0 / 28;
  EXPECT_NEAR(step.seconds, state + 1, 1e-9);
  EXPECT_NEAR(waited(step, WaitReason::host), 1 + weights, 1e-9);
  EXPECT_NEAR(waited(step, WaitReason::link), 1, 1e-9);
  EXPECT_NEAR(waited(step, WaitReason::gradient), state - 0.1 - (2 + weights), 1e-9);
}

// The second of two units is done ahead of the verdict, while the first's gradient is made.
TEST(Simulator, SpeculatesUnderBackward) {
  CountedRun run = seconds_each(2, 10, 10);
  run.placement.spare_buckets = 2;
  Simulator simulator(run.of(), always(Ahead::speculate));
  const SimulatedStep step = simulator.settle();
  EXPECT_NEAR(step.seconds, 40 + 3, 1e-9);
  EXPECT_NEAR(step.speculated, 1000, 1e-9);
  EXPECT_GT(simulator.counters().speculated, 0);
  EXPECT_EQ(simulator.counters().previewed, 0);
}

// The second gradient of three is complete ten seconds before the verdict.
TEST(Simulator, SaysForWhatTheHostWaits) {
  CountedRun run = seconds_each(3, 10, 10);
  run.placement.spare_buckets = 1;
  SimulatedStep step = Simulator(run.of(), always(Ahead::speculate)).settle();
  EXPECT_NEAR(spent(step, HostTime::place), 10, 1e-9) << "the only place has the third's state";
  EXPECT_EQ(spent(step, HostTime::verdict), 0);
  expect_sums(step);

  run.placement.spare_buckets = 3;
  step = Simulator(run.of(), always(Ahead::speculate)).settle();
  EXPECT_EQ(spent(step, HostTime::place), 0);
  EXPECT_EQ(spent(step, HostTime::verdict), 0) << "the last gradient comes with the verdict";
  expect_sums(step);

  step = Simulator(run.of(), always(Ahead::leave)).settle();
  EXPECT_NEAR(spent(step, HostTime::verdict), 20, 1e-9) << "since the first gradient";
  EXPECT_EQ(spent(step, HostTime::place), 0);
  expect_sums(step);
}

// Work ahead of a verdict that always clips would be void, so the policy leaves it.
TEST(Simulator, WhoAlwaysClipsWaitsForTheVerdict) {
  CountedRun run = seconds_each(6, 0.1, 1.5);  // forward hides little
  run.placement.spare_buckets = 6;
  const SimulatedStep stands = Simulator(run.of()).settle();
  run.verdicts = Verdicts::clip;
  const SimulatedStep clipped = Simulator(run.of()).settle();
  EXPECT_GT(spent(clipped, HostTime::verdict), spent(stands, HostTime::verdict) + 1);
  EXPECT_LT(clipped.overlap().efficiency(), stands.overlap().efficiency());
  expect_sums(stands);
  expect_sums(clipped);
}

// All left: the second unit's gradient comes while the first is updated and takes 2000 of the 28000 bytes a second, so
// that 2000 bytes of the update are left when it is there: 1/14 s more.
TEST(Simulator, CopiesAndUpdatesShareTheHostsMemory) {
  const SimulatedStep step = Simulator(seconds_each(2, 10, 10).of(), always(Ahead::leave)).settle();
  EXPECT_NEAR(step.seconds, 40 + 3 + 1.0 / 14, 1e-9);
  // A link as quick as the memory: the first gradient comes alone in 1/14 s, the second beside the first update, 30'000
  // bytes together, and the first weights beside the second update, which leaves them a quarter.
  CountedRun quick = seconds_each(2, 10, 10);
  quick.link_to_host = quick.link_to_device = 28'000;
  EXPECT_NEAR(Simulator(quick.of(), always(Ahead::leave)).settle().seconds, 40 + 1.0 / 14 + 30.0 / 28 + 4 * 1.0 / 14,
              1e-9);
}

// AdamW can use 24000 of the 28000 bytes a second: its updates take longer, and a copy beside them takes nothing away.
TEST(Simulator, WhatAdamWCannotUseIsTheLinks) {
  CountedRun run = seconds_each(2, 10, 10);
  run.host_adamw = 24'000;
  EXPECT_NEAR(Simulator(run.of(), always(Ahead::leave)).settle().seconds, 40 + 1 + 28.0 / 24 + 1, 1e-9);
}

TEST(Simulator, DoesWhatThePolicyChooses) {
  const auto count = [](Ahead ahead, After after, Verdicts verdicts) {
    CountedRun run = seconds_each(6, 4, 8);
    run.placement.spare_buckets = 3;
    run.verdicts = verdicts;
    Simulator simulator(run.of(), always(ahead, after));
    for (int i = 0; i < 3; ++i) simulator.step();
    return simulator.counters();
  };
  // The gradients of a last step have not been updated yet, but for what was done ahead: the sixth's comes too late.
  HostCounters c = count(Ahead::leave, After::in_place, Verdicts::stand);
  EXPECT_EQ(c.updated_in_place, 12);
  EXPECT_EQ(c.speculated + c.previewed + c.updated_weights_first, 0);
  c = count(Ahead::leave, After::weights_first, Verdicts::stand);
  EXPECT_EQ(c.updated_weights_first, 12);
  c = count(Ahead::preview, After::in_place, Verdicts::stand);
  EXPECT_EQ(c.previewed, 15);
  EXPECT_EQ(c.committed_ahead, 15);
  EXPECT_EQ(c.updated_in_place, 2);
  c = count(Ahead::speculate, After::in_place, Verdicts::stand);
  EXPECT_EQ(c.speculated, 9) << "as many as have places";
  c = count(Ahead::preview, After::in_place, Verdicts::clip);
  EXPECT_EQ(c.committed_ahead, 0);
  EXPECT_EQ(c.voided, 15);
  EXPECT_EQ(c.redone, 10);
  c = count(Ahead::speculate, After::in_place, Verdicts::clip);
  EXPECT_EQ(c.voided, 9);
}

CountedRun random_run(std::mt19937& random) {
  const auto between = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  CountedRun run;
  const int units = static_cast<int>(random() % 20) + 4;
  for (int u = 0; u < units; ++u) {
    const double forward = between(0.5, 1) * 1e-3;
    run.units.push_back({static_cast<std::int64_t>(between(1e6, 2e7)), forward, between(2, 3) * forward});
  }
  run.counts.device_units = static_cast<int>(random() % 3);
  run.counts.streamed_units = random() % 2 == 0 ? 0 : (units - 1 - std::max(1, run.counts.device_units)) / 2;
  run.counts.send_masters = run.counts.streamed_units > 0 && units % 2 == 0;
  run.counts.move_gradients = random() % 2 == 0;
  run.device_update = 1e-4;
  run.placement.schedule = random() % 5 == 0 ? Schedule::synchronous : Schedule::overlapped;
  run.placement.bucket_elements = 4'000'000;
  run.placement.spare_buckets = static_cast<std::int64_t>(random() % 10);
  run.link_to_host = between(1e10, 2e11);
  run.link_to_device = between(1e10, 2e11);
  run.host_memory = between(5e10, 1e12);
  run.host_adamw = (0.5 + static_cast<double>(run.placement.spare_buckets) / 10) * run.host_memory;
  return run;
}

TEST(Simulator, PartsAddUpToTheStep) {
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(round);
    CountedRun run = random_run(random);
    run.verdicts = round % 4 == 0 ? Verdicts::clip : Verdicts::stand;
    run.micro_batches = 1 + round % 3;
    Simulator simulator(run.of());
    for (int step = 0; step < 4; ++step) expect_sums(simulator.step());
    const SimulatedStep settled = simulator.settle();
    expect_sums(settled);
    EXPECT_LE(settled.overlap().efficiency(), 1 + 1e-9);
  }
}

// More of anything is never slower, if the host goes about its buckets in the same way; but copies that come sooner may
// be beside another's, which costs up to a hundredth. The policy of the engine counts
// on a tenth less of the host than there is, and of its few pieces one more or less is done before the verdict: of its
// choice that holds to a few percent.
SO_LABEL(sweep, "Simulator.MoreBandwidthIsNoSlower");
TEST(Simulator, MoreBandwidthIsNoSlower) {
  std::mt19937 random(3);
  int quicker = 0;
  for (int round = 0; round < 200; ++round) {
    CountedRun run = random_run(random);
    run.host_adamw = run.host_memory * 2;  // what it can use more it takes from the link
    SCOPED_TRACE(round);
    const auto fixed = [&](const CountedRun& r) {
      return Simulator(r.of(), always(static_cast<Ahead>(round % 3), static_cast<After>(round / 3 % 2)))
          .settle()
          .seconds;
    };
    const auto chosen = [](const CountedRun& r) { return Simulator(r.of()).settle().seconds; };
    for (double SimulatedRun::*rate :
         {&SimulatedRun::link_to_host, &SimulatedRun::link_to_device, &SimulatedRun::host_memory}) {
      CountedRun more = run;
      more.*rate *= 1.5;
      EXPECT_LE(fixed(more), fixed(run) * 1.01);
      EXPECT_LE(chosen(more), chosen(run) * 1.06);
      quicker += chosen(more) < 0.99 * chosen(run);
    }
  }
  EXPECT_GT(quicker, 80);
}

// A step is the device's work and its waits, and no lane does more than it can.
TEST(Simulator, StepsAddUp) {
  std::mt19937 random(5);
  for (int round = 0; round < 100; ++round) {
    const CountedRun run = random_run(random);
    SCOPED_TRACE(round);
    Simulator simulator(run.of());
    const SimulatedStep step = simulator.settle();
    double pass = run.device_update, elements = 0;
    for (std::size_t u = 0; u < run.units.size(); ++u) {
      pass += run.units[u].forward + run.units[u].backward;
      if (static_cast<int>(u) >= run.counts.device_units) elements += static_cast<double>(run.units[u].elements);
    }
    EXPECT_NEAR(step.device, pass, 1e-9 * pass);
    EXPECT_NEAR(std::accumulate(step.waits.begin(), step.waits.end(), step.device), step.seconds, 1e-6 * step.seconds);
    // To the last verdict's share: steps that alternate are averaged over a few.
    EXPECT_GE(step.seconds, 0.97 * step.host_bytes / run.host_memory);
    EXPECT_GE(step.host_bytes, 0.97 * 28 * elements);
    EXPECT_LE(step.speculated, static_cast<double>(run.placement.spare_buckets * run.placement.bucket_elements));
  }
}

TEST(Simulator, ATimelineIsOneStepWithoutOverlapInALane) {
  std::mt19937 random(8);
  for (int round = 0; round < 50; ++round) {
    const CountedRun run = random_run(random);
    SCOPED_TRACE(round);
    Simulator simulator(run.of());
    const SimulatedStep step = simulator.settle();
    const SimulatedTimeline timeline = simulator.timeline();
    std::array<double, simulated_lanes> last{}, busy{};
    std::vector<SimulatedSpan> spans = timeline.spans;
    std::stable_sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    for (const SimulatedSpan& span : spans) {
      const auto lane = static_cast<std::size_t>(span.lane);
      EXPECT_GE(span.begin, last[lane] - 1e-12);
      EXPECT_LE(span.begin, span.end);
      EXPECT_LE(span.end, timeline.seconds + 1e-12);
      last[lane] = span.end;
      busy[lane] += span.end - span.begin;
    }
    EXPECT_NEAR(busy[0], timeline.seconds, 1e-9) << "the device works or waits";
    EXPECT_NEAR(timeline.seconds, step.seconds, 0.2 * step.seconds);
  }
}

}  // namespace
}  // namespace so::test
