// The overlapped schedule against the synchronous one, and that against the plain loop: the same bytes every time.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "offload/schedule_rig.h"
#include "support/jitter.h"
#include "support/label.h"
#include "support/sanitized.h"

namespace so::test::schedules {
namespace {

std::string name_of(Clips clipping) {
  return clipping == Clips::never ? "never" : clipping == Clips::sometimes ? "sometimes" : "always";
}

// The reference of all below is the plain loop over elements.
TEST(Schedule, SynchronousIsThePlainLoop) {
  Task task;
  task.bad_gradients = true;
  const Manner manner{.bucket_elements = 6400, .device_units = 1, .schedule = Schedule::synchronous};
  EngineRig rig(layered(), settings_of(task, manner), 2);
  const Flat initial = synthetic_gradients(layered(), 1, 0.125f);
  ReferenceLoop reference(layered(), settings_of(task, manner), initial);
  rig.load(initial);
  std::int64_t updates = 0;
  int clipped = 0;
  for (int step = 0; step < kScheduleSteps; ++step) {
    const Flat gradient = gradient_of(task, step, 0);
    const double lr = 1e-2 / (1 + step);
    if (!rig.step(gradient, lr, updates + 1).finite) continue;
    clipped += reference.step(gradient, lr, ++updates) != 1.0f ? 1 : 0;
  }
  EXPECT_EQ(updates, kScheduleSteps - 6);
  EXPECT_GT(clipped, 10);
  EXPECT_LT(clipped, 20);
  EXPECT_TRUE(rig.equals(reference));
  EXPECT_TRUE(rig.bytes() == expected(task).bytes);
  EXPECT_EQ(rig.engine().counters().host.speculated + rig.engine().counters().host.previewed, 0);
}

class ScheduleEquality : public testing::TestWithParam<std::tuple<Clips, int, bool>> {};

TEST_P(ScheduleEquality, BucketsSplitsPlacesThreads) {
  const auto [clipping, micro_batches, bad] = GetParam();
  for (const DType compute : {DType::f32, DType::bf16}) {
    Task task;
    task.compute = compute;
    task.gradients = micro_batches == 1 || bad ? compute : DType::f32;
    task.moments = micro_batches != 1 ? compute : compute == DType::bf16 ? DType::u8 : DType::f32;
    task.clipping = clipping;
    task.micro_batches = micro_batches;
    task.bad_gradients = bad;
    const Result& reference = expected(task);
    EXPECT_EQ(reference.skipped, bad ? 6 : 0);
    unsigned seed = 11;
    int turn = compute == DType::f32 ? 0 : 1;
    for (const Manner& manner :
         {Manner{.bucket_elements = 1024, .spare_buckets = 1000, .threads = 3},
          Manner{.bucket_elements = 4096, .device_units = 2, .spare_buckets = 2, .cast = CastSide::device},
          Manner{.bucket_elements = 4096, .spare_buckets = 3, .threads = 1, .resume_at = 21},
          Manner{.bucket_elements = 6400, .device_units = 1, .transient_gradients = true},
          Manner{.bucket_elements = 2048, .spare_buckets = 3, .streamed_units = 100},
          Manner{.bucket_elements = 2048, .spare_buckets = 3, .streamed_units = 100, .remade = true},
          Manner{.bucket_elements = 2048, .spare_buckets = 3, .streamed_units = 100, .send_masters = true},
          Manner{.bucket_elements = 4096,
          .device_units = 2,
          .spare_buckets = 2,
          .transient_weights = true,
          .transient_gradients = true,
          .streamed_units = 2,
          .send_masters = true,
          .remade = true,
          .over_link = true,
          .resume_at = 23},
          Manner{.bucket_elements = 4096,
          .device_units = 2,
          .transient_weights = true,
          .streamed_units = 2,
          .remade = true},
          Manner{.bucket_elements = 4096,
          .device_units = 2,
          .spare_buckets = 2,
          .transient_weights = true,
          .transient_gradients = true,
          .streamed_units = 1,
          .cast = CastSide::device,
          .resume_at = 13},
          Manner{.bucket_elements = 1024, .spare_buckets = 1000, .threads = 1, .over_link = true},
          Manner{
              .bucket_elements = 2048, .spare_buckets = 3, .streamed_units = 100, .over_link = true, .resume_at = 17},
          Manner{.bucket_elements = 4096,
          .device_units = 2,
          .spare_buckets = 2,
          .transient_gradients = true,
          .streamed_units = 1,
          .cast = CastSide::device,
          .over_link = true},
          Manner{.bucket_elements = 2048,
          .device_units = 3,
          .spare_buckets = 2,
          .transient_weights = true,
          .transient_gradients = true}}) {
      if (sanitized && turn++ % 3 != 0) continue;  // a third of them in either format
      SCOPED_TRACE(std::string(so::name_of(compute)) + ", buckets of " + std::to_string(manner.bucket_elements) +
                   ", spare " + std::to_string(manner.spare_buckets));
      const Result result = run(task, manner, ++seed);
      expect_same(result, reference);
      if (manner.resume_at < 0) expect_all_happened(result, task, manner);
    }
  }
}

SO_LABEL(sweep, "Engine/ScheduleEquality.*/clips_never_*");
SO_LABEL(sweep, "Engine/ScheduleEquality.*/clips_always_micro_batches_4*");
SO_LABEL(sweep, "Engine/ScheduleEquality.*/clips_sometimes_micro_batches_1*");
// The cases with bad gradients have the same schedules.
SO_LABEL(no_asan, "Engine/ScheduleEquality.*/clips_sometimes_micro_batches_4");
SO_LABEL(no_tsan, "Engine/ScheduleEquality.*/clips_sometimes_micro_batches_4");
SO_LABEL(no_asan, "Engine/ScheduleEquality.*/clips_always_micro_batches_1");
SO_LABEL(no_tsan, "Engine/ScheduleEquality.*/clips_always_micro_batches_1");
INSTANTIATE_TEST_SUITE_P(Engine, ScheduleEquality,
                         testing::Combine(testing::Values(Clips::never, Clips::sometimes, Clips::always),
                                          testing::Values(1, 4), testing::Bool()),
                         [](const auto& i) {
                           return "clips_" + name_of(std::get<0>(i.param)) + "_micro_batches_" +
                                  std::to_string(std::get<1>(i.param)) + (std::get<2>(i.param) ? "_bad_gradients" : "");
                         });

// A thousand steps while every thread is held up at random where it meets another.
SO_LABEL(slow, "Schedule.StressUnderRandomDelays");
SO_LABEL(no_asan, "Schedule.StressUnderRandomDelays");
TEST(Schedule, StressUnderRandomDelays) {
  const Jitter jitter(5);
  unsigned seed = 100;
  for (int round = 0; round < (sanitized ? 10 : 20); ++round) {
    Task task;
    task.compute = DType::bf16;
    task.gradients = round % 2 == 0 ? DType::bf16 : DType::f32;
    task.moments = std::array{DType::bf16, DType::u8, DType::f32, DType::u8}[static_cast<std::size_t>(round % 4)];
    task.bad_gradients = round % 3 != 0;
    task.micro_batches = round % 5 == 4 ? 3 : 1;
    Manner manner;
    manner.bucket_elements = std::int64_t{1024} << round % 3;
    manner.device_units = round % 4;
    manner.spare_buckets = round % 7;
    manner.threads = 1 + round % 3;
    manner.transient_weights = round % 2 == 1;
    manner.cast = round % 5 < 2 ? CastSide::device : CastSide::host;
    manner.transient_gradients = round % 4 >= 2;
    manner.streamed_units = round % 3;
    manner.send_masters = round % 8 >= 5;
    manner.remade = round % 4 == 1;
    manner.over_link = round % 5 >= 2;
    manner.resume_at = round % 6 == 5 ? 20 : -1;
    SCOPED_TRACE("round " + std::to_string(round));
    const Result result = run(task, manner, ++seed);
    expect_same(result, expected(task));
    if (HasFailure()) return;
  }
  EXPECT_GT(Jitter::slept(), sanitized ? 500 : 1000) << "else this delayed nothing";
}

}  // namespace
}  // namespace so::test::schedules
