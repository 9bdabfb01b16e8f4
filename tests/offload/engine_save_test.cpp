// A save that runs beside a step, and a run that resumes with another owner of its state.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "offload/engine_scenario.h"

namespace so::test::engine_run {
namespace {

class EngineOwners : public testing::TestWithParam<Owner> {};
INSTANTIATE_TEST_SUITE_P(Engine, EngineOwners, testing::Values(Owner::host, Owner::device),
                         [](const auto& i) { return std::string(name_of(i.param)); });

// A save reads bucket by bucket on its own thread while finish_step updates; it must see the state before the step.
TEST_P(EngineOwners, SaveBesideAStepSeesTheStateBeforeIt) {
  const ParameterLayout& layout = the_run().layout;
  EngineRig rig(layout, settings_of(DType::f32, 4096, 0, GetParam()), 2);
  OffloadEngine& engine = rig.engine();
  rig.load(the_run().initial);
  // Until a step has really had to wait for the save, which the first one almost always has.
  for (std::int64_t step = 1; step <= 50; ++step) {
    const EngineBytes before = rig.bytes();
    EngineBytes saved;
    std::atomic<bool> finishing = false;
    engine.begin_save();
    std::thread save([&] {
      while (!finishing) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      for (const Bucket& bucket : engine.buckets()) {
        rig.read(StateArray::master, bucket.range(), saved.master);
        rig.read(StateArray::first_moment, bucket.range(), saved.m);
        rig.read(StateArray::second_moment, bucket.range(), saved.v);
        engine.gate().passed(bucket.index());
      }
      engine.gate().end();
    });
    engine.begin_last_micro_batch(1e-2, step);
    const Flat& gradient = the_run().micro_batches[static_cast<std::size_t>(step) % kSteps][0];
    rig.micro_batch(gradient, true);
    finishing = true;
    engine.finish_step(rig.stream());
    save.join();
    saved.weights = before.weights;  // a save reads no weights
    ASSERT_TRUE(saved == before) << "the save saw a part of the step";
    ASSERT_FALSE(rig.bytes() == before) << "the step did nothing";
    const EngineCounters counters = engine.counters();
    const bool host_waited = counters.host.seconds[static_cast<std::size_t>(HostTime::checkpoint)] > 0;
    const bool device_waited = counters.device_waits[static_cast<std::size_t>(WaitReason::checkpoint)] > 0;
    ASSERT_FALSE(GetParam() == Owner::host ? device_waited : host_waited);
    if (host_waited || device_waited) return;
  }
  FAIL() << "no step ever waited for the save";
}

// As the search for a weight that is not finite does, while the checkpoint before it is being written.
TEST_P(EngineOwners, SaveBesideAReadSeesWhatIsThere) {
  const ParameterLayout& layout = the_run().layout;
  EngineRig rig(layout, settings_of(DType::f32, 4096, 0, GetParam()), 2);
  rig.load(the_run().initial);
  rig.step(the_run().micro_batches[0][0], 1e-2, 1);
  const EngineBytes before = rig.bytes();
  for (int i = 0; i < 20; ++i) {
    EngineBytes saved;
    rig.engine().begin_save();
    std::atomic<bool> saving = true;
    std::thread save([&] {
      for (const Bucket& bucket : rig.engine().buckets()) {
        rig.read(StateArray::master, bucket.range(), saved.master);
        rig.read(StateArray::first_moment, bucket.range(), saved.m);
        rig.read(StateArray::second_moment, bucket.range(), saved.v);
        rig.engine().gate().passed(bucket.index());
      }
      rig.engine().gate().end();
      saving = false;
    });
    while (saving) {
      std::vector<float> read;
      rig.read(StateArray::master, layout.unit_range(2), read);
    }
    save.join();
    saved.weights = before.weights;
    ASSERT_TRUE(saved == before) << "the save saw what another read";
  }
}

TEST_P(EngineOwners, SaveBesideASkippedStepBlocksNothing) {
  const ParameterLayout& layout = the_run().layout;
  EngineRig rig(layout, settings_of(DType::f32, 4096, 0, GetParam()), 1);
  rig.load(the_run().initial);
  Flat bad = the_run().micro_batches[0][0];
  bad[0][0] = std::numeric_limits<float>::quiet_NaN();
  rig.engine().begin_save();  // nobody reads: a step that updated would wait forever
  EXPECT_FALSE(rig.step(bad, 1e-2, 1).finite);
  rig.engine().gate().end();
}

// Twenty steps, some clipped, one skipped, the owner changed by a save and a resume in the middle: to the last bit the
// run of one owner, which is the plain loop.
TEST_P(EngineOwners, ARunResumesUnderTheOther) {
  const ParameterLayout& layout = the_run().layout;
  const double max_norm = std::sqrt(the_run().norms[0] * the_run().norms[1]);
  const Owner other = GetParam() == Owner::host ? Owner::device : Owner::host;
  for (const DType compute : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(name_of(compute));
    ReferenceLoop reference(layout, settings_of(compute, 64, max_norm), the_run().initial);
    EngineRig whole(layout, settings_of(compute, 4096, max_norm, GetParam()), 2),
        resumed(layout, settings_of(compute, 6400, max_norm, other), 3);
    whole.load(the_run().initial);
    std::int64_t updates = 0;
    for (std::size_t s = 0; s < 20; ++s) {
      if (s == 9) resumed.load(whole.bytes());
      Flat gradient = the_run().micro_batches[s % kSteps][s % kMicroBatches];
      const bool bad = s == 13;
      if (bad) gradient[4][11] = std::numeric_limits<float>::infinity();
      if (!bad) reference.step(gradient, kLr[s % kSteps], ++updates);
      EXPECT_EQ(whole.step(gradient, kLr[s % kSteps], updates + (bad ? 1 : 0)).finite, !bad);
      if (s >= 9) {
        EXPECT_EQ(resumed.step(gradient, kLr[s % kSteps], updates + (bad ? 1 : 0)).finite, !bad);
      }
    }
    EXPECT_TRUE(whole.equals(reference));
    EXPECT_TRUE(resumed.equals(reference));
    EXPECT_GT(resumed.engine().counters().clipped_steps, 0);
    EXPECT_LT(resumed.engine().counters().clipped_steps, 10);
    EXPECT_EQ(resumed.engine().counters().skipped_steps, 1);
  }
}

}  // namespace
}  // namespace so::test::engine_run
