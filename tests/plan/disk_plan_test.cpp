#include "plan/disk_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "support/errors.h"
#include "support/files.h"

namespace so::test {
namespace {

constexpr std::uint64_t model = 10, checkpoint = 100;

DiskPlan plan_of(std::int64_t existing, std::int64_t saves, std::int64_t keep) {
  DiskPlan plan;
  plan.saved = {model, checkpoint};
  plan.existing = existing;
  plan.saves = saves;
  plan.keep = keep;
  return plan;
}

// The files of a run one after the other: each checkpoint beside those kept, the model before the last.
std::uint64_t walk(std::int64_t existing, std::int64_t saves, std::int64_t keep) {
  std::int64_t held = existing, most = model;
  for (std::int64_t save = 1; save <= saves; ++save) {
    ++held;
    const std::int64_t beyond = (held - existing) * static_cast<std::int64_t>(checkpoint);
    most = std::max(most, beyond + static_cast<std::int64_t>(model));  // the model's place is kept free, or taken
    if (keep > 0) held = std::min(held, keep);
  }
  return static_cast<std::uint64_t>(most);
}

TEST(DiskPlan, PeakIsThatOfTheFilesAsTheyComeAndGo) {
  for (std::int64_t existing = 0; existing <= 5; ++existing)
    for (std::int64_t saves = 0; saves <= 8; ++saves)
      for (std::int64_t keep = 0; keep <= 6; ++keep)
        EXPECT_EQ(plan_of(existing, saves, keep).peak(), walk(existing, saves, keep))
            << existing << " there, " << saves << " to be saved, " << keep << " kept";
}

TEST(DiskPlan, CountsTheCheckpointsOfARun) {
  TemporaryDirectory directory;
  TrainOptions options;
  options.output_dir = (directory / "none").string();
  for (const int every : {0, 1, 2, 3, 7}) {
    options.save_steps.reset();
    if (every > 0) options.save_steps = every;
    for (std::int64_t first = 0; first <= 9; ++first) {
      for (std::int64_t last = first; last <= 9; ++last) {
        std::int64_t saves = last > first ? 1 : 0;
        for (std::int64_t step = first + 1; step < last; ++step) saves += every > 0 && step % every == 0 ? 1 : 0;
        EXPECT_EQ(disk_plan(options, {model, checkpoint}, first, last).saves, saves) << every << first << last;
      }
    }
  }
}

TEST(DiskPlan, SaysWhatIsMissing) {
  DiskPlan plan = plan_of(0, 3, 1);
  plan.saved = {56'800'000, 170'000'000};
  EXPECT_EQ(plan.line(81'000'000'000),
            "disk: final model 56.8 MB, 3 checkpoints of 170.0 MB (newest 1 kept), 396.8 MB at once; 81.0 GB free");
  TemporaryDirectory directory;
  EXPECT_NO_THROW(plan.require(directory / "not" / "yet"));
  plan.saves = std::numeric_limits<std::int64_t>::max();
  plan.keep = 0;
  expect_in(refusal([&] { plan.require(directory.path()); }),
            {"no space left on " + directory.path().string(), " missing; ", "--save_total_limit"});
}

TEST(DiskPlan, AnEarlierRunMakesRoom) {
  DiskPlan plan = plan_of(0, 2, 0);
  plan.replaced = 150;
  EXPECT_EQ(plan.peak(), 60u);
  plan.replaced = 1000;
  EXPECT_EQ(plan.peak(), 0u);
}

TEST(DiskPlan, CheckpointsHoldWhatTheDtypeAsks) {
  EXPECT_EQ(saved_bytes(2000, 1000, DType::bf16, "").model, 2000u);
  EXPECT_EQ(saved_bytes(2000, 1000, DType::bf16, "").checkpoint, 14000u);
  EXPECT_EQ(saved_bytes(4000, 1000, DType::f32, "").model, 4000u);
  EXPECT_EQ(saved_bytes(4000, 1000, DType::f32, "").checkpoint, 12000u);
}

}  // namespace
}  // namespace so::test
