#include "checkpoint/output_space.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <limits>

#include "base/file.h"
#include "support/errors.h"
#include "support/files.h"

namespace so::test {
namespace {

constexpr std::uint64_t model = 10, checkpoint = 100;

std::int64_t no_epochs(std::int64_t) { return 0; }

OutputSpace plan_of(std::int64_t existing, std::int64_t saves, std::int64_t keep) {
  OutputSpace plan;
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

TEST(OutputSpace, PeakIsThatOfTheFilesAsTheyComeAndGo) {
  for (std::int64_t existing = 0; existing <= 5; ++existing)
    for (std::int64_t saves = 0; saves <= 8; ++saves)
      for (std::int64_t keep = 0; keep <= 6; ++keep)
        EXPECT_EQ(plan_of(existing, saves, keep).peak(), walk(existing, saves, keep))
            << existing << " there, " << saves << " to be saved, " << keep << " kept";
}

TEST(OutputSpace, CountsTheCheckpointsOfARun) {
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
        EXPECT_EQ(output_space(options, {model, checkpoint}, first, last, no_epochs).saves, saves)
            << every << first << last;
      }
    }
  }
}

TEST(OutputSpace, CountsTheCheckpointsOfEpochs) {
  TemporaryDirectory directory;
  TrainOptions options;
  options.output_dir = (directory / "none").string();
  const auto saves = [&](Cadence cadence, std::int64_t first, std::int64_t last) {
    options.save_strategy = cadence;
    const auto epochs_of_4 = [](std::int64_t steps) { return steps / 4; };
    return output_space(options, {model, checkpoint}, first, last, epochs_of_4).saves;
  };
  options.save_steps = 1;
  EXPECT_EQ(saves(Cadence::epoch, 0, 8), 2) << "the last is that of the end";
  EXPECT_EQ(saves(Cadence::epoch, 0, 9), 3);
  EXPECT_EQ(saves(Cadence::epoch, 4, 9), 2);
  EXPECT_EQ(saves(Cadence::epoch, 9, 9), 0);
  EXPECT_EQ(saves(Cadence::no, 0, 9), 1);
  EXPECT_EQ(saves(Cadence::steps, 0, 9), 9);
}

TEST(OutputSpace, CountsTheBestBesideTheLast) {
  TemporaryDirectory directory;
  TrainOptions options;
  options.output_dir = (directory / "none").string();
  options.load_best_model_at_end = true;
  options.save_steps = 4;
  options.eval_steps = 6;
  options.save_total_limit = 1;
  const auto plan = [&] {
    return output_space(options, {model, checkpoint}, 0, 24, [](std::int64_t n) { return n / 5; });
  };
  EXPECT_EQ(plan().saves, 8) << "4, 6, 8, 12, 16, 18, 20, 24";
  EXPECT_EQ(plan().peak(), 3 * checkpoint + model);
  EXPECT_NE(plan().line(0).find("at most 8 checkpoints of 100 bytes (newest 1 and the best kept)"), std::string::npos)
      << plan().line(0);
  options.save_total_limit = 3;
  EXPECT_EQ(plan().peak(), 4 * checkpoint + model);
  EXPECT_NE(plan().line(0).find("(newest 2 and the best kept)"), std::string::npos);
  options.eval_strategy = Cadence::epoch;
  EXPECT_EQ(plan().saves, 5 + 4 + 1) << "at most";
  options.save_strategy = Cadence::no;
  EXPECT_EQ(plan().saves, 4 + 1);
  options.eval_strategy = options.save_strategy = Cadence::steps;
  options.eval_steps = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(plan().saves, 5 + 1);
}

TEST(OutputSpace, SaysWhatIsMissing) {
  OutputSpace plan = plan_of(0, 3, 1);
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

TEST(OutputSpace, AnEarlierRunMakesRoom) {
  OutputSpace plan = plan_of(0, 2, 0);
  plan.replaced = 150;
  EXPECT_EQ(plan.peak(), 60u);
  plan.replaced = 1000;
  EXPECT_EQ(plan.peak(), 0u);
}

TEST(OutputSpace, CheckpointsHoldWhatTheDtypeAsks) {
  const NumberFormats narrow = model_formats(DType::bf16), wide = model_formats(DType::f32);
  EXPECT_EQ(saved_bytes(2000, 1000, narrow, "").model, 2000u);
  EXPECT_EQ(saved_bytes(2000, 1000, narrow, "").checkpoint, 14000u);
  EXPECT_EQ(saved_bytes(2000, 1000, narrow, "", /*only_model=*/true).checkpoint, 2000u);
  EXPECT_EQ(saved_bytes(4000, 1000, wide, "").model, 4000u);
  EXPECT_EQ(saved_bytes(4000, 1000, wide, "").checkpoint, 12000u);
  NumberFormats kept = narrow;
  kept.moments = DType::bf16;
  EXPECT_EQ(saved_bytes(2000, 1000, kept, "").checkpoint, 10000u);
  kept.moments = DType::u8;
  EXPECT_EQ(saved_bytes(2000, 1000, kept, "").checkpoint, 8000u + 4 * 8) << "four blocks have two scales each";
}

// Caches that go where the program's tests have their files; `most` and `bytes` are of the free space there.
class CacheSpace : public testing::Test {
 protected:
  CacheNeed need(double most, double bytes) {
    return {"data.jsonl", directory_ / "cache", of_free(most), [this, bytes] {
              ++counted_;
              return of_free(bytes);
            }};
  }
  std::uint64_t of_free(double share) const {
    return static_cast<std::uint64_t>(share * static_cast<double>(free_space(directory_.path())));
  }

  TemporaryDirectory directory_;
  int counted_ = 0;
};

TEST_F(CacheSpace, WhatFitsByItsLimitIsNotCounted) {
  const CacheNeed needs[] = {need(0.4, 9), need(0.4, 9)};
  EXPECT_NO_THROW(require_cache_space(needs));
  EXPECT_NO_THROW(require_cache_space(needs, directory_ / "out", of_free(0.1)));
  EXPECT_NO_THROW(require_cache_space({}, directory_ / "out", of_free(9)));
  EXPECT_EQ(counted_, 0);
}

TEST_F(CacheSpace, WhatFitsWhenItIsCountedIsNotRefused) {
  const CacheNeed needs[] = {need(4, 0.2), need(4, 0.2)};
  EXPECT_NO_THROW(require_cache_space(needs));
  EXPECT_EQ(counted_, 2);
  EXPECT_NO_THROW(require_cache_space(needs, directory_ / "out", of_free(0.4)));
}

TEST_F(CacheSpace, WhatDoesNotFitIsRefusedWithWhatIsMissing) {
  const CacheNeed two[] = {need(4, 0.7), need(4, 0.7)}, one[] = {need(4, 0.7)};
  expect_in(refusal([&] { require_cache_space(two); }),
            {"no space left on " + (directory_ / "cache").string(), "the token cache of data.jsonl takes ", " free, ",
             " missing", "choose another --cache_dir"});
  EXPECT_NO_THROW(require_cache_space(one));
  // The output goes to the same file system: neither alone is too much.
  expect_in(refusal([&] { require_cache_space(one, directory_ / "out" / "not yet", of_free(0.7)); }),
            {"the run's model and first checkpoint ", " missing", "--cache_dir or --output_dir"});
}

TEST_F(CacheSpace, AnotherFileSystemIsOfNoAccount) {
  struct stat here {
  }, there{};
  if (::stat("/dev/shm", &there) != 0 || ::stat(directory_.path().c_str(), &here) != 0 || here.st_dev == there.st_dev)
    GTEST_SKIP() << "there is no second file system";
  const CacheNeed needs[] = {need(4, 0.7)};
  EXPECT_NO_THROW(require_cache_space(needs, "/dev/shm/not-there", of_free(0.7)));
}

TEST_F(CacheSpace, TheLineSaysThatItIsAnEstimate) {
  EXPECT_EQ(cache_line({}), "");
  const CacheNeed one{"data.jsonl", directory_.path(), 300'000'000, nullptr};
  EXPECT_EQ(cache_line({&one, 1}).find("token cache: at most 300.0 MB by an estimate, in " +
                                       directory_.path().string() + "; "),
            0u);
  const CacheNeed two[] = {one, one};
  EXPECT_EQ(cache_line(two).find("token caches: at most 600.0 MB by an estimate, in "), 0u);
}

}  // namespace
}  // namespace so::test
