#include "checkpoint/checkpoint_directory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "io/atomic_directory.h"
#include "support/child_process.h"
#include "support/io.h"

namespace so {
namespace {

using io_test::expect_error;
using io_test::names_in;
using io_test::TemporaryDirectory;
using io_test::write_file;

namespace fs = std::filesystem;
using Steps = std::vector<std::int64_t>;

void make_checkpoint(const fs::path& path) {
  fs::create_directories(path);
  write_file(path / "model.safetensors", "x");
  write_file(path / "trainer_state.json", "{}");
}

Steps steps_of(const std::vector<Checkpoint>& checkpoints) {
  Steps steps;
  for (const Checkpoint& checkpoint : checkpoints) steps.push_back(checkpoint.step);
  return steps;
}

TEST(CheckpointDirectory, ListsCompleteCheckpointsByStep) {
  TemporaryDirectory output;
  const CheckpointDirectory checkpoints(output.path());
  EXPECT_TRUE(checkpoints.list().empty());
  EXPECT_FALSE(checkpoints.latest());
  EXPECT_TRUE(CheckpointDirectory(output / "absent").list().empty());
  for (const std::int64_t step : {1000, 9, 20}) make_checkpoint(checkpoints.path_of(step));
  fs::create_directory(checkpoints.path_of(5000));  // incomplete
  for (const char* name : {"checkpoint-", "checkpoint-x", "checkpoint-007", "checkpoint--3", "checkpoint-6.tmp-1",
                           "checkpoint-99999999999999999999", "my-checkpoint-7", "runs"}) {
    make_checkpoint(output / name);
  }
  write_file(output / "checkpoint-8", "a file");
  EXPECT_EQ(steps_of(checkpoints.list()), (Steps{9, 20, 1000}));
  ASSERT_TRUE(checkpoints.latest());
  EXPECT_EQ(checkpoints.latest()->path, output / "checkpoint-1000");
}

TEST(CheckpointDirectory, OneRuleForNames) {
  EXPECT_EQ(checkpoint_step("checkpoint-0"), 0);
  EXPECT_EQ(checkpoint_step("checkpoint-9223372036854775807"), 9223372036854775807);
  for (const char* name : {"", "checkpoint-", "checkpoint-007", "checkpoint--3", "checkpoint-+3", "checkpoint-6.tmp-1",
                           "checkpoint-best", "checkpoint-9223372036854775808", "Checkpoint-3", "checkpoint-3 "})
    EXPECT_FALSE(checkpoint_step(name)) << name;
}

TEST(CheckpointDirectory, OnlyTemporariesUnderOurNamesGo) {
  TemporaryDirectory output;
  const std::string dead = std::to_string(io_test::dead_process());
  for (const char* name : {"checkpoint-12.tmp-", "export.tmp-", "init.tmp-"}) make_checkpoint(output / (name + dead));
  write_file(output / ("metrics.jsonl.tmp-" + dead + "-0"), "x");
  std::vector<std::string> others;
  for (const char* name : {"checkpoint-007.tmp-", "checkpoint-best.tmp-", "exported.tmp-", "thesis.tmp-"}) {
    others.push_back(name + dead);
    make_checkpoint(output / others.back());
  }
  remove_stale_temporaries_of_runs(output.path());
  EXPECT_EQ(names_in(output.path()), others);
}

// As transformers' Trainer sorts its checkpoints: the best one moves next to the last before the oldest go.
TEST(CheckpointDirectory, TheBestCountsAndStays) {
  TemporaryDirectory output;
  const CheckpointDirectory checkpoints(output.path());
  for (const std::int64_t step : {2, 4, 6, 8}) make_checkpoint(checkpoints.path_of(step));
  EXPECT_EQ(checkpoints.newest_beside(2, 0), 0);
  EXPECT_EQ(checkpoints.newest_beside(0, 3), 3);
  EXPECT_EQ(checkpoints.newest_beside(2, 1), 1) << "2 and 8 stay";
  EXPECT_EQ(checkpoints.newest_beside(8, 1), 1) << "8 stays";
  EXPECT_EQ(checkpoints.newest_beside(4, 2), 1) << "4 and 8 stay";
  EXPECT_EQ(checkpoints.newest_beside(4, 3), 2) << "4, 6 and 8 stay";
  EXPECT_EQ(checkpoints.newest_beside(6, 3), 3) << "4, 6 and 8 stay";
  EXPECT_EQ(checkpoints.newest_beside(5, 2), 2) << "one that is not there";
  EXPECT_EQ(checkpoints.newest_beside(2, 9), 9);
}

TEST(CheckpointDirectory, SeesACheckpointOnlyWhenItIsWhole) {
  TemporaryDirectory output;
  const CheckpointDirectory checkpoints(output.path());
  AtomicDirectory directory(checkpoints.path_of(3));
  write_file(directory.path() / "trainer_state.json", "{}");
  EXPECT_FALSE(checkpoints.latest());
  directory.commit();
  EXPECT_EQ(checkpoints.latest()->step, 3);
}

TEST(CheckpointDirectory, RotatesTheOldestAwayNeverTheLatest) {
  TemporaryDirectory output;
  const CheckpointDirectory checkpoints(output.path());
  for (const std::int64_t step : {100, 20, 3}) make_checkpoint(checkpoints.path_of(step));
  fs::create_directory(checkpoints.path_of(1));  // incomplete: not counted, not ours to remove
  EXPECT_TRUE(checkpoints.rotate(0).empty());
  EXPECT_TRUE(checkpoints.rotate(-1).empty());
  EXPECT_TRUE(checkpoints.rotate(3).empty());
  EXPECT_EQ(steps_of(checkpoints.rotate(2)), Steps{3});
  EXPECT_EQ(steps_of(checkpoints.rotate(1)), Steps{20});
  EXPECT_TRUE(checkpoints.rotate(1).empty());
  EXPECT_EQ(names_in(output.path()), (std::vector<std::string>{"checkpoint-1", "checkpoint-100"}));
}

TEST(CheckpointDirectory, FindsTheLatestUpToAStep) {
  TemporaryDirectory output;
  const CheckpointDirectory checkpoints(output.path());
  for (const std::int64_t step : {3, 20, 100}) make_checkpoint(checkpoints.path_of(step));
  EXPECT_FALSE(checkpoints.latest_up_to(2));
  EXPECT_EQ(checkpoints.latest_up_to(3)->step, 3);
  EXPECT_EQ(checkpoints.latest_up_to(99)->step, 20);
  EXPECT_EQ(checkpoints.latest_up_to(1000)->step, 100);
}

TEST(CheckpointDirectory, RotationThatIsKilledLeavesWholeCheckpoints) {
  TemporaryDirectory output;
  const CheckpointDirectory checkpoints(output.path());
  for (int round = 0; round < 8; ++round) {
    for (const std::int64_t step : {1, 2, 3}) {
      make_checkpoint(checkpoints.path_of(step));
      for (int i = 0; i < 20; ++i) write_file(checkpoints.path_of(step) / std::to_string(i), "x");
    }
    ASSERT_TRUE(io_test::kill_child_after(100 + 120 * round, [&] {
      checkpoints.rotate(1);
      for (;;) ::pause();
    }));
    const auto left = checkpoints.list();
    ASSERT_FALSE(left.empty());
    EXPECT_EQ(left.back().step, 3);
    for (const Checkpoint& checkpoint : left) EXPECT_EQ(names_in(checkpoint.path).size(), 22u);
    remove_stale_temporaries_of_runs(output.path());
    EXPECT_EQ(names_in(output.path()).size(), left.size());
  }
}

TEST(RequireWritable, CreatesAndProves) {
  TemporaryDirectory output;
  require_writable(output / "a/b");
  EXPECT_EQ(names_in(output / "a/b"), std::vector<std::string>{});
  write_file(output / "file", "x");
  expect_error([&] { require_writable(output / "file"); }, {"file"});
  expect_error([&] { require_writable(output / "file/sub"); },
               {"cannot create directory", "file/sub", "Not a directory"});
}

TEST(RequireWritable, NamesTheReasonInAReadOnlyDirectory) {
  TemporaryDirectory output;
  fs::create_directory(output / "locked");
  fs::permissions(output.path(), fs::perms::owner_all | fs::perms::others_read | fs::perms::others_exec);
  fs::permissions(output / "locked",
                  fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read | fs::perms::others_exec);
  const std::string result = io_test::run_in_child([&]() -> std::string {
    if (!io_test::become_unprivileged()) return "cannot become unprivileged";
    require_writable(output / "locked");
    return "no failure";
  });
  EXPECT_EQ(result.find("threw: cannot create " + (output / "locked").string()), 0u) << result;
  EXPECT_NE(result.find("Permission denied (choose a directory that this user may use)"), result.npos) << result;
  const std::string below = io_test::run_in_child([&]() -> std::string {
    if (!io_test::become_unprivileged()) return "cannot become unprivileged";
    require_writable(output / "locked/sub");
    return "no failure";
  });
  EXPECT_EQ(below.find("threw: cannot create directory " + (output / "locked/sub").string() + ": Permission denied"),
            0u)
      << below;
}

TEST(RequireFreeSpace, ComparesWithTheDisk) {
  TemporaryDirectory output;
  require_free_space(output / "not/yet", 1);
  expect_error([&] { require_free_space(output.path(), std::uint64_t{1} << 62); },
               {"no space left on", "needs 4.6 EB", "free"});
}

}  // namespace
}  // namespace so
