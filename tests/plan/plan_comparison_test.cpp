// The plan is compared with what came: memory as it is taken, and the figures of a run.
#include "plan/plan_comparison.h"

#include <gtest/gtest.h>

namespace so {
namespace {

class Comparison : public testing::Test {
 protected:
  Buffer take(MemoryKind kind, std::size_t bytes) { return device_->allocate(kind, bytes, "test"); }

  ThreadPool pool_{"test", {0}, false};
  const std::unique_ptr<Device> device_ = make_cpu_device(pool_);
};

TEST_F(Comparison, CountsTheMostThatWasHeldSinceItBegan) {
  take(MemoryKind::pinned, 1 << 20);  // and given back
  const Buffer before = take(MemoryKind::device, 4096);
  MemoryMeter meter(*device_);
  EXPECT_EQ(meter.pinned_bytes(), 0u);
  EXPECT_EQ(meter.device_bytes(), 4096u);
  take(MemoryKind::device, 8192);
  const Buffer held = take(MemoryKind::pinned, 8192);
  EXPECT_EQ(meter.device_bytes(), 4096u + 8192u) << "though it was given back";
  EXPECT_EQ(meter.pinned_bytes(), 8192u) << "less than was held before";
  meter.forget_peaks();
  EXPECT_EQ(meter.device_bytes(), 4096u);
  EXPECT_GT(meter.host_bytes(), 1u << 20);
}

TEST_F(Comparison, HasTheFiguresThatThereAre) {
  const MemoryMeter meter(*device_);
  TrainingPlan plan;
  plan.memory.add(MemoryKind::device, "weights", 3000);
  plan.memory.add(MemoryKind::pageable, "state", 5000);
  const Buffer weights = take(MemoryKind::device, 3300);
  StepFigures steps{.steps = 10, .sum = {.overlap = {.seconds = 21, .device_idle = {6}, .host = {9}}}};
  auto figures = compare_with_plan(plan, *device_, meter, steps);
  ASSERT_EQ(figures.size(), 2u) << "no time is planned, and nothing pinned";
  EXPECT_EQ(figures[0].name, "device_bytes");
  EXPECT_NEAR(figures[0].difference(), 0.1, 1e-12);
  EXPECT_EQ(figures[1].name, "host_bytes");
  EXPECT_EQ(figures[1].planned, 8000) << "on the CPU device all is the host's";

  plan.estimate = StepEstimate{.gpu = 1.5, .waits = {0.5}, .exposed = 0.5, .host_time = {1}};
  const Buffer pinned = take(MemoryKind::pinned, 512);
  figures = compare_with_plan(plan, *device_, meter, steps);
  ASSERT_EQ(figures.size(), 7u);
  EXPECT_EQ(describe(figures[0]), "step 2.1000 s, planned 2.0000 s (+5.0%)");
  EXPECT_EQ(describe(figures[1]), "overlap efficiency 0.714, planned 0.750 (-4.8%)");
  EXPECT_EQ(describe(figures[2]), "device work of a step 1.5000 s, planned 1.5000 s (+0.0%)");
  EXPECT_EQ(describe(figures[3]), "AdamW on the host 0.9000 s, planned 1.0000 s (-10.0%)");
  EXPECT_EQ(describe(figures[5]), "pinned memory 512 bytes, planned 0 bytes") << "of nothing there is no share";
  EXPECT_EQ(compare_with_plan(plan, *device_, meter, {}).size(), 3u) << "no step was measured";
}

}  // namespace
}  // namespace so
