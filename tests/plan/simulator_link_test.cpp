// In these steps, played in virtual time, the link carries state that the device updates, weights that stream,
// gradients that move, or sums of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "plan/placement/step_estimate.h"
#include "plan/simulate/simulator.h"
#include "plan/simulated_steps.h"

namespace so::test {
namespace {

// Six units that are updated after the verdict, all before the forward pass is over. The host takes three of their
// halves in hand at a time, which take it half a second each; the link takes the others' state both ways, 12'000 bytes
// at 24'000 a second.
TEST(Simulator, UpdatesOverTheLink) {
  CountedRun run = seconds_each(6, 0.01, 20);
  run.placement.bucket_elements = 500;
  run.link_to_host = run.link_to_device = 12'000;
  run.host_memory = 1e9;
  run.host_adamw = 28'000;
  const SimulatedStep alone = Simulator(run.of(), always(Ahead::leave)).settle();
  EXPECT_EQ(alone.over_link, 0);
  EXPECT_NEAR(alone.seconds, 6 * 20 + 6, 0.6);
  run.placement.over_link = true;
  const SimulatedStep both = Simulator(run.of(), always(Ahead::leave)).settle();
  EXPECT_GE(both.over_link, 2000);
  EXPECT_LE(both.over_link, 4000);
  EXPECT_NEAR(both.seconds, 6 * 20 + 3, 1.2);
  expect_sums(both);
  // They share the memory's bandwidth.
  run.host_memory = 28'000;
  EXPECT_GT(Simulator(run.of(), always(Ahead::leave)).settle().seconds, both.seconds + 1);
}

// With places both work ahead of the verdict, and more of it is done than by the host alone.
TEST(Simulator, TheLinkSpeculatesToo) {
  CountedRun run = seconds_each(12, 0.2, 0.4);
  run.placement.spare_buckets = 12;
  run.host_memory = 1e9;
  run.host_adamw = 28'000;
  run.link_to_host = run.link_to_device = 40'000;
  const SimulatedStep alone = Simulator(run.of()).settle();
  run.placement.over_link = true;
  const SimulatedStep both = Simulator(run.of()).settle();
  EXPECT_GT(both.over_link, 0);
  EXPECT_LT(both.seconds, 0.8 * alone.seconds);
  EXPECT_GT(both.seconds, 12 * 0.6);
  expect_sums(both);
}

// Five units, of which the three in the middle stream; nothing else takes time. A copy is 1 s, forward 0.5, backward 1.
//   forward   u0 0-0.5   u1 copied 0-1, works -1.5   u2 copied 1-2, -2.5   u3 copied 2-3 (u1's place), -3.5   u4 -4
//   backward  u4 -5   u3 and u2, which are there, -6 and -7   u1 copied 6-7 in u3's place, -8   u0 -9
//   again     u0 -9.5   u1 and u2, which are there, -10 and -10.5   u3 copied 10-11, -11.5   u4 -12
//             u4 -13   u3 -14   u2 -15   u1 copied 14-15, -16   u0 -17
CountedRun streaming() {
  CountedRun run = seconds_each(5, 0.5, 1);
  run.counts.streamed_units = 3;
  run.bytes.gradient = run.bytes.weight = 0;
  run.host_memory = run.link_to_host = 1e12;
  return run;
}

TEST(Simulator, StreamedWeightsComeInTurn) {
  const SimulatedStep step = Simulator(streaming().of(), always(Ahead::leave)).settle();
  EXPECT_NEAR(step.seconds, 9, 1e-6);
  EXPECT_NEAR(waited(step, WaitReason::stream), 1.5, 1e-6);
  EXPECT_NEAR(step.host_bytes, 5000 * 24 + 4 * 2000, 1);
}

// Three units, of which the second streams, in four pieces; only AdamW and the stream take time. The host has the first
// unit after 1 s, and a piece of the second every 0.25 s from there on, which are as long on the link. The device waits
// for them from 1.1 s on, so the last one is there at 2.25.
TEST(Simulator, WeightsStreamAsTheyBecomeFinalIfTheDeviceWaits) {
  CountedRun run = seconds_each(3, 0.1, 5);
  run.units[2].elements = 10;
  run.placement.bucket_elements = 250;
  run.counts.streamed_units = 1;
  run.bytes.gradient = run.bytes.weight = 0;
  run.link_to_host = run.host_memory = 1e12;
  run.host_adamw = 24'000;
  const SimulatedStep step = Simulator(run.of(), always(Ahead::leave)).settle();
  EXPECT_NEAR(step.seconds, 2.25 + 2 * 0.1 + 3 * 5, 1e-6);
  EXPECT_NEAR(waited(step, WaitReason::host), 1.9, 1e-6);
  EXPECT_NEAR(waited(step, WaitReason::stream), 0.25, 1e-6);
}

TEST(Simulator, EveryMicroBatchStreamsAgain) {
  for (const int micro_batches : {2, 4, 5, 30}) {
    CountedRun run = streaming();
    run.micro_batches = micro_batches;
    const SimulatedStep step = Simulator(run.of(), always(Ahead::leave)).settle();
    EXPECT_NEAR(step.seconds, 9 + 8 * (micro_batches - 1), 1e-6) << micro_batches;
    EXPECT_NEAR(waited(step, WaitReason::stream), 1.5 + 0.5 * (micro_batches - 1), 1e-6) << micro_batches;
    EXPECT_NEAR(step.device, 7.5 * micro_batches, 1e-6);
    EXPECT_NEAR(step.host_bytes, 5000 * 24 + 4 * 2000 + (micro_batches - 1) * 2 * 2000, 1) << micro_batches;
  }
}

// u2's input is not kept, so u1 runs forward again when u3 is done: backward u4 -5, u3 -6, u1 copied 6-7 in u3's place,
// forward -7.5, u2 and u1, which are there, -8.5 and -9.5, u0 -10.5.
TEST(Simulator, InputsAreMadeAgainInBackward) {
  for (const int micro_batches : {1, 2, 30}) {
    CountedRun run = streaming();
    run.remade = {2};
    run.micro_batches = micro_batches;
    const SimulatedStep step = Simulator(run.of(), always(Ahead::leave)).settle();
    EXPECT_NEAR(step.seconds, 10.5 + 9.5 * (micro_batches - 1), 1e-6) << micro_batches;
    EXPECT_NEAR(waited(step, WaitReason::stream), 2.5 + 1.5 * (micro_batches - 1), 1e-6);
    EXPECT_NEAR(step.device, 8.0 * micro_batches, 1e-6);
    EXPECT_NEAR(step.host_bytes, 5000 * 24 + 4 * 2000 + (micro_batches - 1) * 2 * 2000, 1);
    EXPECT_LE(least_seconds(run.of()), step.seconds);
    // An input goes to the host in the first of a layer's forward passes alone.
    run.units[1].input_to_host = 0.25;
    EXPECT_NEAR(Simulator(run.of(), always(Ahead::leave)).settle().device, 8.25 * micro_batches, 1e-6);
  }
}

// The host has the weights of a unit a second after those of the one before; copies take a second and no memory.
//   u0's at 1, works -1.5   u1's at 2, copied -3, -3.5   u2's at 3, copied -4, -4.5   u3's at 4, copied -5, -5.5
//   u4's at 5, -6; backward 5, where u1's copy is there in time
TEST(Simulator, StreamedWeightsWaitForTheHost) {
  CountedRun run = streaming();
  run.host_memory = 24'000;
  run.bytes.stored = 1e-6;  // so that copies take nothing of the memory
  run.link_to_device = 1e-3;
  const SimulatedStep step = Simulator(run.of(), always(Ahead::leave)).settle();
  EXPECT_NEAR(step.seconds, 6 + 5, 1e-5);
  EXPECT_NEAR(waited(step, WaitReason::host), 1 + 0.5, 1e-5);  // u0 until 1, u1's until 2
  EXPECT_NEAR(waited(step, WaitReason::stream), 1 + 0.5 + 0.5, 1e-5);
}

// Gradients leave as they come, 3 s each, through two places for the units in between:
//   backward  u4 0-1   u3 1-2   u2 2-3   u1 must wait for u3's to have left: u4's -4, u3's -7; 7-8   u0 -9
// and u0's own gradient is the last to arrive, after u2's -10, u1's -13, its own -16: 7 after the verdict.
TEST(Simulator, GradientsLeaveThroughTheirPlaces) {
  CountedRun run = seconds_each(5, 0.1, 1);
  run.counts.move_gradients = true;
  run.link_to_host = 2000.0 / 3;
  run.link_to_device = run.host_memory = 1e12;
  const SimulatedStep step = Simulator(run.of(), always(Ahead::leave)).settle();
  EXPECT_NEAR(waited(step, WaitReason::moving), 4, 1e-6);
  EXPECT_NEAR(waited(step, WaitReason::host), 7, 1e-6);
  EXPECT_NEAR(step.seconds, 5.5 + 4 + 7, 1e-6);
}

// Beside gradients that move, state over the link stands still: here they come without a pause.
TEST(Simulator, StateWaitsForGradientsThatMove) {
  CountedRun run = seconds_each(6, 0.2, 0.9);
  run.placement.bucket_elements = 100;
  run.placement.spare_buckets = 60;
  run.placement.over_link = true;
  run.bytes.state = 0.7;
  run.host_adamw = 3'000;
  run.host_memory = 1e9;
  const auto done_beside_gradients = [](const CountedRun& r) {
    Simulator simulator(r.of(), always(Ahead::speculate));
    const SimulatedTimeline timeline = simulator.timeline();
    std::vector<SimulatedSpan> fetches;
    for (const SimulatedSpan& span : timeline.spans)
      if (span.work == SimulatedWork::fetch) fetches.push_back(span);
    return std::count_if(timeline.spans.begin(), timeline.spans.end(), [&](const SimulatedSpan& span) {
      return span.work == SimulatedWork::over_link &&
             std::any_of(fetches.begin(), fetches.end(), [&](const SimulatedSpan& fetch) {
               return fetch.begin + 1e-9 < span.end && span.end < fetch.end - 1e-9;
             });
    });
  };
  EXPECT_GT(done_beside_gradients(run), 0);
  run.counts.move_gradients = true;
  EXPECT_EQ(done_beside_gradients(run), 0);
}

// Sums of u1 and u3 take turns in one slot, two seconds each way; u2 has the other, and u0 and u4 stay.
//   forward   0-2.5
//   backward  u4 -3.5   u3 -4.5   u2 -5.5   u3's has left at 6.5, u1 -7.5   u0 -8.5
//             then u2's leaves, 6.5-8.5, and u1's, 8.5-10.5, and u3's comes, 10.5-12.5
//   forward   8.5-11
//   backward  u4 -12   u3 12.5-13.5, which leaves at once   u2 -14.5   u1's comes 13.5-15.5, -16.5   u0 -17.5
CountedRun summing(int micro_batches) {
  CountedRun run = seconds_each(5, 0.5, 1);
  run.counts.move_gradients = true;
  run.micro_batches = micro_batches;
  run.bytes.sum = 4;
  run.bytes.gradient = run.bytes.weight = 0;
  run.host_memory = 1e12;
  return run;
}

TEST(Simulator, SumsComeBackForTheNextMicroBatch) {
  const SimulatedStep step = Simulator(summing(2).of(), always(Ahead::leave)).settle();
  EXPECT_NEAR(step.seconds, 17.5, 1e-6);
  EXPECT_NEAR(waited(step, WaitReason::moving), 1 + 0.5 + 1, 1e-6);
  EXPECT_NEAR(step.device, 15, 1e-6);
  // Three sums leave and two come back.
  EXPECT_NEAR(step.host_bytes, 5000 * 24 + 5 * 4000, 1);
  EXPECT_NEAR(step.times.backward_seconds, 17.5 - 12, 1e-6) << "a wait for a sum is the pass's own";
  expect_sums(step);
}

// The micro-batches that are played at once are like those that are played one by one.
TEST(Simulator, SumsOfManyMicroBatches) {
  std::vector<SimulatedStep> steps;
  for (const int micro_batches : {3, 4, 5, 6, 31})
    steps.push_back(Simulator(summing(micro_batches).of(), always(Ahead::leave)).settle());
  for (const SimulatedStep& step : steps) expect_sums(step);
  const double each = steps[1].seconds - steps[0].seconds, bytes = steps[1].host_bytes - steps[0].host_bytes,
               waits = waited(steps[1], WaitReason::moving) - waited(steps[0], WaitReason::moving);
  EXPECT_NEAR(each, 7.5 + waits, 1e-6);
  EXPECT_GT(waits, 0);
  EXPECT_NEAR(bytes, 5 * 4000, 1);
  for (const auto& [index, more] : std::vector<std::pair<std::size_t, int>>{{2, 1}, {3, 2}, {4, 27}}) {
    EXPECT_NEAR(steps[index].seconds, steps[1].seconds + more * each, 1e-6) << more;
    EXPECT_NEAR(steps[index].host_bytes, steps[1].host_bytes + more * bytes, 1) << more;
    EXPECT_NEAR(waited(steps[index], WaitReason::moving), waited(steps[1], WaitReason::moving) + more * waits, 1e-6);
  }
}

}  // namespace
}  // namespace so::test
