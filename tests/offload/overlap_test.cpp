// Where the time of a step goes, on the device's side and on the host's: the parts add up, and each reason for which
// the host is idle shows when the test brings it about.
#include "offload/schedule/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "offload/copy_hook.h"
#include "offload/device_waits.h"
#include "offload/engine_report.h"
#include "offload/engine_rig.h"
#include "offload/schedule/placement.h"
#include "support/device_rig.h"
#include "support/jitter.h"

namespace so::test {
namespace {

class FixedPolicy final : public UpdatePolicy {
 public:
  explicit FixedPolicy(Ahead ahead) : ahead_(ahead) {}
  UpdateChoice choose(const UpdateFacts& facts) override {
    const std::size_t n = facts.elements.size();
    return {std::vector(n, ahead_), std::vector(n, After::in_place), std::vector(n, After::weights_first)};
  }

 private:
  Ahead ahead_;
};

// Leaves all, and notes what it was told.
class ListeningPolicy final : public UpdatePolicy {
 public:
  explicit ListeningPolicy(std::vector<UpdateFacts>& told) : told_(told) {}
  UpdateChoice choose(const UpdateFacts& facts) override {
    told_.push_back(facts);
    return leave_.choose(facts);
  }

 private:
  std::vector<UpdateFacts>& told_;
  FixedPolicy leave_{Ahead::leave};
};

const ParameterLayout& overlap_layout() {
  static const ParameterLayout layout = engine_layout();
  return layout;
}

CountedSettings settings_with(std::int64_t spare_buckets) {
  CountedSettings settings;
  settings.placement.bucket_elements = 4096;
  settings.placement.spare_buckets = spare_buckets;
  return settings;
}

template <std::size_t count>
double sum(const std::array<double, count>& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

// Returns once the host's thread has been seen to do this and nothing else for a while. Gives up after two minutes,
// which are a limit for what never comes and no measure of anything.
bool comes_to(const OffloadEngine& engine, HostTime time) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (std::chrono::steady_clock::now() < end) {
    const HostSeconds before = engine.counters().host.seconds;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    HostSeconds after = engine.counters().host.seconds;
    const auto at = static_cast<std::size_t>(time);
    const bool grew = after[at] > before[at];
    after[at] = before[at];
    if (grew && after == before) return true;
  }
  return false;
}

// Holds a stream up.
class Hold {
 public:
  std::function<void()> function() {
    return [this] { released_.wait(false); };
  }
  void release() {
    released_ = true;
    released_.notify_all();
  }

 private:
  std::atomic<bool> released_ = false;
};

// Enqueues the function, once it is set, before the next copy.
CopyHook before_the_first(std::function<void()>& before) {
  return [&before](Stream& stream) {
    if (before) stream.host("hold", std::exchange(before, nullptr));
    return true;
  };
}

// One step, in which the device is held up before its first gradient or after its last, until the host does `time`. A
// step goes before it, since CUDA may wait for all streams when it loads a kernel for its first launch.
bool comes_in_a_step(HostTime time, bool after_gradients, Ahead ahead, std::int64_t spare_buckets) {
  EngineRig rig(overlap_layout(), settings_with(spare_buckets), 2, std::make_unique<FixedPolicy>(ahead));
  const Flat gradient = synthetic_gradients(overlap_layout(), 1);
  rig.load(gradient);
  rig.step(gradient, 1e-2, 1);
  Hold hold;
  rig.engine().begin_last_micro_batch(1e-2, 2);
  const int last = overlap_layout().units() - 1;
  rig.micro_batch(gradient, true, nullptr, [&](int unit) {
    if (unit == last && !after_gradients) rig.stream().host("hold", hold.function());
  });
  if (after_gradients) rig.stream().host("hold", hold.function());
  const bool came = comes_to(rig.engine(), time);
  hold.release();
  rig.engine().finish_step(rig.stream());
  return came;
}

TEST(StepOverlap, ThePolicyKnowsHowManyMicroBatchesAStepHas) {
  std::vector<UpdateFacts> told;
  EngineRig rig(overlap_layout(), settings_with(0), 2, std::make_unique<ListeningPolicy>(told));
  const Flat gradient = synthetic_gradients(overlap_layout(), 1);
  rig.load(gradient);
  const std::vector<std::int64_t> wanted{3, 1, 2};
  for (std::size_t step = 0; step < wanted.size(); ++step) {
    for (std::int64_t i = 1; i < wanted[step]; ++i) rig.micro_batch(gradient, i == 1);
    rig.engine().begin_last_micro_batch(1e-3, static_cast<std::int64_t>(step) + 1);
    EXPECT_EQ(told.size(), step) << "the forward pass would wait for the choice";
    rig.micro_batch(gradient, wanted[step] == 1);
    EXPECT_EQ(told.size(), step + 1);
    rig.engine().finish_step(rig.stream());
  }
  ASSERT_EQ(told.size(), wanted.size());
  for (std::size_t step = 0; step < wanted.size(); ++step) EXPECT_EQ(told[step].micro_batches, wanted[step]);
}

// A framework's gradients are there before the last micro-batch is known to be the last, and units come in any order.
TEST(StepOverlap, TheLastMicroBatchIsCountedOnce) {
  std::vector<UpdateFacts> told;
  EngineRig rig(overlap_layout(), settings_with(0), 2, std::make_unique<ListeningPolicy>(told));
  const Flat gradient = synthetic_gradients(overlap_layout(), 1);
  rig.load(gradient);
  rig.micro_batch(gradient, true);
  rig.engine().begin_last_micro_batch(1e-3, 1);
  for (int unit = 0; unit < overlap_layout().units(); ++unit) rig.engine().gradients_ready(unit, rig.stream());
  rig.engine().finish_step(rig.stream());
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].micro_batches, 2);
}

TEST(StepOverlap, ThePolicyKnowsWhatStreams) {
  std::vector<UpdateFacts> told;
  CountedSettings settings = settings_with(0);
  settings.placement.bucket_elements = 1024;
  settings.counts.streamed_units = 1;
  settings.expected.stream_seconds = 5;
  EngineRig rig(overlap_layout(), settings, 2, std::make_unique<ListeningPolicy>(told));
  const Flat gradient = synthetic_gradients(overlap_layout(), 1);
  rig.load(gradient);
  rig.step(gradient, 1e-3, 1);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].stream_seconds, 5);
  ASSERT_EQ(told[0].streamed.size(), told[0].elements.size());
  const std::vector<UnitPlacement> units = settings.of(overlap_layout()).placement.units;
  const auto streams = [](const UnitPlacement& unit) { return unit.weights == ResidencyKind::streamed; };
  const auto unit = static_cast<int>(std::find_if(units.begin(), units.end(), streams) - units.begin());
  EXPECT_EQ(std::accumulate(told[0].streamed.begin(), told[0].streamed.end(), std::int64_t{0}),
            overlap_layout().unit_range(unit).size());
  for (std::size_t i = 0; i < told[0].streamed.size(); ++i)
    EXPECT_TRUE(told[0].streamed[i] == 0 || told[0].streamed[i] == told[0].elements[i]) << i;
}

TEST(StepOverlap, ThePolicyGoesByThePlanUntilTimesAreMeasured) {
  std::vector<UpdateFacts> told;
  CountedSettings settings = settings_with(0);
  settings.expected = {.update_seconds = 1e3, .preview_seconds = 2e3, .forward_seconds = 3e3, .backward_seconds = 4e3};
  EngineRig rig(overlap_layout(), settings, 2, std::make_unique<ListeningPolicy>(told));
  const Flat gradient = synthetic_gradients(overlap_layout(), 1);
  rig.load(gradient);
  EXPECT_EQ(rig.engine().measured_times().backward_seconds, 0);
  for (int step = 1; step <= 4; ++step) rig.step(gradient, 1e-3, step);
  ASSERT_EQ(told.size(), 4u);
  EXPECT_EQ(told[0].update_seconds, 1e3);
  EXPECT_EQ(told[0].forward_seconds, 3e3);
  EXPECT_EQ(told[0].backward_seconds, 4e3);
  for (const double measured : {told[3].update_seconds, told[3].forward_seconds, told[3].backward_seconds}) {
    EXPECT_GT(measured, 0);
    EXPECT_LT(measured, 1e2);
  }
  EXPECT_EQ(told[3].preview_seconds, 2e3) << "nothing was previewed";
  EXPECT_EQ(told[3].link_seconds, 0);
}

TEST(HostIdle, WaitsForGradients) { EXPECT_TRUE(comes_in_a_step(HostTime::gradient, false, Ahead::speculate, 1000)); }

// Whatever the policy leaves, or has no place for, must be there first.
TEST(HostIdle, WaitsForGradientsAlsoOfWhatIsLeft) {
  EXPECT_TRUE(comes_in_a_step(HostTime::gradient, false, Ahead::leave, 0));
  EXPECT_TRUE(comes_in_a_step(HostTime::gradient, false, Ahead::speculate, 0));
}

TEST(HostIdle, WaitsForAPlace) { EXPECT_TRUE(comes_in_a_step(HostTime::place, true, Ahead::speculate, 1)); }

TEST(HostIdle, WaitsForTheVerdict) {
  EXPECT_TRUE(comes_in_a_step(HostTime::verdict, true, Ahead::leave, 1)) << "since all is left";
  EXPECT_TRUE(comes_in_a_step(HostTime::verdict, true, Ahead::speculate, 1000)) << "since all is done";
  EXPECT_TRUE(comes_in_a_step(HostTime::verdict, true, Ahead::preview, 0)) << "since all is done";
}

// The first gradient is held up on its way to the host, or the first weights on theirs to the device, until the ring
// has no slot left.
TEST(HostIdle, WaitsForTransfers) {
  SO_CPU_ONLY("the held streams are those of the CPU device");
  for (const auto& held : {std::pair{"to host", HostTime::fetch}, std::pair{"to device", HostTime::send}}) {
    const char* stream = held.first;
    Hold hold;
    std::function<void()> before;
    EngineRig rig(
        overlap_layout(), settings_with(1000), 2, std::make_unique<FixedPolicy>(Ahead::speculate),
        [&](Device& device) { return std::make_unique<HookedDevice>(device, stream, before_the_first(before)); });
    const Flat gradient = synthetic_gradients(overlap_layout(), 1);
    rig.load(gradient);
    rig.stream().synchronize();
    ASSERT_GT(rig.engine().buckets().size(), HostLink::ahead + 1) << "or all weights have a slot";
    before = hold.function();
    rig.engine().begin_last_micro_batch(1e-2, 1);
    rig.micro_batch(gradient, true);
    EXPECT_TRUE(comes_to(rig.engine(), held.second)) << stream;
    hold.release();
    rig.engine().finish_step(rig.stream());
    rig.bytes();
  }
}

TEST(HostIdle, WaitsForACheckpoint) {
  EngineRig rig(overlap_layout(), settings_with(0), 2, std::make_unique<FixedPolicy>(Ahead::leave));
  const Flat gradient = synthetic_gradients(overlap_layout(), 1);
  rig.load(gradient);
  OffloadEngine& engine = rig.engine();
  engine.begin_save();
  rig.step(gradient, 1e-2, 1);
  EXPECT_TRUE(comes_to(engine, HostTime::checkpoint));
  for (const Bucket& bucket : engine.buckets()) engine.gate().passed(bucket.index());
  engine.gate().end();
  rig.bytes();
  EXPECT_EQ(engine.counters().device_waits[static_cast<std::size_t>(WaitReason::checkpoint)], 0);
}

// Under random delays, with steps that are clipped and skipped.
TEST(StepOverlap, PartsOfTheEngineAddUpToTheTime) {
  const Jitter jitter(3);
  for (const Ahead ahead : {Ahead::leave, Ahead::speculate, Ahead::preview}) {
    CountedSettings settings = settings_with(2);
    settings.counts.device_units = 1;
    settings.max_grad_norm = 100;  // every third step's is above
    EngineRig rig(overlap_layout(), settings, 2, std::make_unique<FixedPolicy>(ahead));
    rig.load(synthetic_gradients(overlap_layout(), 1));
    OffloadEngine& engine = rig.engine();
    for (unsigned step = 1; step <= 12; ++step) {
      Flat gradient = synthetic_gradients(overlap_layout(), step, step % 3 == 0 ? 1.0f : 0x1p-6f);
      if (step % 5 == 0) gradient[2][1] = std::numeric_limits<float>::infinity();
      const EngineCounters before = engine.counters();
      engine.begin_step();
      rig.step(gradient, 1e-2, step);
      const StepOverlap overlap = overlap_of(since(engine.counters(), before));
      ASSERT_NEAR(sum(overlap.host), overlap.seconds, 1e-9);
      for (std::size_t i = 0; i < host_times; ++i)
        ASSERT_GE(overlap.host[i], -1e-9) << name_of(static_cast<HostTime>(i));
      ASSERT_GT(overlap.efficiency(), 0);
      ASSERT_LE(overlap.efficiency(), 1 + 1e-9);
      ASSERT_LE(sum(overlap.device_idle), overlap.seconds) << "a wait of another step";
    }
    const StepOverlap all = overlap_of(engine.counters());
    EXPECT_GT(all.host_adamw(), 0);
    EXPECT_GT(all.device_idle[static_cast<std::size_t>(WaitReason::verdict)], 0);
    EXPECT_NEAR(all.device_work() + sum(all.device_idle), all.seconds, 1e-9) << "no wait is counted twice";
    rig.bytes();
  }
}

TEST(StepOverlap, OfARunWithoutTheHost) {
  CountedSettings settings = settings_with(0);
  settings.counts.device_units = overlap_layout().units();
  EngineRig rig(overlap_layout(), settings, 1);
  rig.load(synthetic_gradients(overlap_layout(), 1));
  rig.step(synthetic_gradients(overlap_layout(), 2), 1e-2, 1);
  const StepOverlap overlap = overlap_of(rig.engine().counters());
  EXPECT_FALSE(overlap.has_host());
  EXPECT_TRUE(host_parts(overlap).empty());
  EXPECT_DOUBLE_EQ(overlap.efficiency(), overlap.device_work() / overlap.seconds);
}

// However late the device comes to the end of one, which is a wait of this step and not of the next.
TEST(StepOverlap, WaitsAreCollectedWhole) {
  DeviceRig rig;
  DeviceWaits waits(rig.device());
  for (int step = 0; step < 2; ++step) {
    waits.begin(rig.stream(), WaitReason::verdict);
    rig.stream().host("be late", [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
    waits.end(rig.stream());
    EXPECT_GE(waits.collect()[static_cast<std::size_t>(WaitReason::verdict)], 0.0199);
    EXPECT_EQ(sum(waits.collect()), 0);
  }
}

// Waits of an evaluation between two steps count in neither.
TEST(StepOverlap, CountsNoWaitsBetweenSteps) {
  EngineRig rig(overlap_layout(), settings_with(0), 2, std::make_unique<FixedPolicy>(Ahead::leave));
  const Flat gradient = synthetic_gradients(overlap_layout(), 1);
  rig.load(gradient);
  OffloadEngine& engine = rig.engine();
  engine.begin_save();  // so that weights are not there
  rig.step(gradient, 1e-2, 1);
  const auto waits = [&] { return engine.counters().device_waits[static_cast<std::size_t>(WaitReason::host)]; };
  const double before = waits();
  EXPECT_TRUE(comes_to(engine, HostTime::checkpoint));
  std::thread save([&] {
    for (const Bucket& bucket : engine.buckets()) engine.gate().passed(bucket.index());
    engine.gate().end();
  });
  rig.weights();  // as an evaluation does; the state is being read by the save
  save.join();
  engine.begin_step();
  rig.step(gradient, 1e-2, 2);
  rig.stream().synchronize();
  EXPECT_EQ(waits(), before);
}

TEST(StepOverlap, SaysWhatKeepsItFromOne) {
  StepOverlap overlap{.seconds = 2};
  overlap.device_idle[static_cast<std::size_t>(WaitReason::host)] = 0.125;
  overlap.device_idle[static_cast<std::size_t>(WaitReason::gradient)] = 0.25;
  EXPECT_DOUBLE_EQ(overlap.efficiency(), 1.625 / 2);
  EXPECT_EQ(describe(overlap),
            "device: work 1.6250 s, idle 0.3750: waiting for a gradient buffer 0.2500, AdamW on the host 0.1250");
  overlap.host[static_cast<std::size_t>(HostTime::adamw)] = 1.75;
  overlap.host[static_cast<std::size_t>(HostTime::place)] = 0.25;
  EXPECT_DOUBLE_EQ(overlap.efficiency(), 1.75 / 2);
  EXPECT_EQ(describe(overlap, 2),
            "device: work 0.8125 s, idle 0.1875: waiting for a gradient buffer 0.1250, AdamW on the host 0.0625; "
            "host: AdamW 0.8750 s, other work 0.0000, idle 0.1250: waiting for spare optimizer state 0.1250");
  StepOverlap twice = overlap;
  twice += overlap;
  EXPECT_DOUBLE_EQ(twice.efficiency(), overlap.efficiency());
  EXPECT_EQ(StepOverlap{}.efficiency(), 0);
}

}  // namespace
}  // namespace so::test
