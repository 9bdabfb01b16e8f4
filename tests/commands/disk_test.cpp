// Disks with no room: what a run refuses at its start, and what it saves of itself later. A limit on the size of a file
// takes the place of a full disk, since everybody may set one.
#include <gtest/gtest.h>

#include "support/files.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/small_disk.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

class Disk : public testing::Test {
 protected:
  TrainCommand command(const std::string& output, int steps) const {
    TrainCommand c(fixture_ / "model", fixture_ / "data.jsonl", temporary_ / output);
    c.set("dtype", "bf16").set("max_length", "48").set("batch_size", "4").set("lr_scheduler", "constant");
    return c.set("max_steps", std::to_string(steps)).set("cache_dir", (temporary_ / "cache").string());
  }
  void finish(const TrainCommand& c) const {
    const Outcome o = run(c.words(), temporary_.path());
    ASSERT_EQ(o.exit_code, 0) << o.err;
  }
  std::string weights(const std::string& output) const { return read_file(temporary_ / output / "model.safetensors"); }
  static int count(const std::string& text, const std::string& part) {
    int n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
  }

  const fs::path fixture_ = model_fixture("qwen3-tied");
  TemporaryDirectory temporary_;
};

// The model in bf16 is 69 kB, the fp32 files of a checkpoint are 137 kB.
TEST_F(Disk, CheckpointsWithoutRoomDoNotCostTheModel) {
  finish(command("reference", 5));
  const Outcome o =
      run(command("run", 5).set("save_steps", "2").words(), temporary_.path(), Limits{.file_bytes = 100'000});
  EXPECT_EQ(o.exit_code, 1) << o.err;
  EXPECT_EQ(count(o.err, "a checkpoint was not saved: "), 3) << o.err;
  EXPECT_TRUE(
      o.err.ends_with("\nsuperoffload: the model is written, but something of the run could not be, as an error "
                      "above says\n"))
      << o.err;
  EXPECT_TRUE(weights("run") == weights("reference"));
  for (const auto& entry : fs::directory_iterator(temporary_ / "run"))
    EXPECT_FALSE(entry.path().filename().string().starts_with("checkpoint-")) << entry.path();
}

// As the table of exit codes says: nothing that was asked for is wrong.
TEST_F(Disk, ACommandWithoutRoomExitsWithOne) {
  const Outcome o = run({test::binary(), "init", "--config", (fixture_ / "model" / "config.json").string(),
                         "--output_dir", (temporary_ / "model").string()},
                        temporary_.path(), Limits{.file_bytes = 20'000});
  EXPECT_EQ(o.exit_code, 1) << o.err;
  EXPECT_NE(o.err.find("`ulimit -f`"), std::string::npos) << o.err;
}

TEST_F(Disk, MetricsWithoutRoomDoNotStopTraining) {
  finish(command("reference", 8));
  finish(command("run", 4));
  // The record is about to meet the limit, which lies above all other files.
  constexpr std::size_t limit = 300'000;
  const fs::path file = temporary_ / "run" / "metrics.jsonl";
  std::string text = read_file(file);
  const std::string head = R"({"step": 1, "note": ")", tail = "\"}\n";
  text += head + std::string(limit - 100 - text.size() - head.size() - tail.size(), 'x') + tail;
  write_file(file, text);

  const Outcome o = run(command("run", 8).flag("resume").words(), temporary_.path(), Limits{.file_bytes = limit});
  EXPECT_EQ(o.exit_code, 1) << o.err;
  EXPECT_EQ(count(o.err, "training goes on without this record"), 1) << o.err;
  EXPECT_TRUE(weights("run") == weights("reference"));
  EXPECT_TRUE(fs::exists(temporary_ / "run" / "checkpoint-8"));
  EXPECT_TRUE(read_file(file) == text) << "half a line was left";
}

TEST_F(Disk, TheDryRunSaysWhatWillBeWritten) {
  const Outcome o = run(command("run", 9).set("save_steps", "3").set("save_total_limit", "2").flag("dry_run").words(),
                        temporary_.path());
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_NE(o.out.find("disk: final model "), std::string::npos) << o.out;
  EXPECT_NE(o.out.find(", 3 checkpoints of "), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("(newest 2 kept)"), std::string::npos) << o.out;
}

TEST_F(Disk, MoreCheckpointsThanTheDiskHoldsAreRefused) {
  TrainCommand endless = command("run", 5).set("max_steps", "10000000000").set("save_steps", "1").flag("dry_run");
  expect_refusal(run(endless.words(), temporary_.path()), {"no space left on ", " missing; ", "--save_total_limit"});
  const Outcome o = run(endless.set("save_total_limit", "1").words(), temporary_.path());
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_FALSE(fs::exists(temporary_ / "run"));
}

// Data whose token cache takes 1.6 MB: 8 bytes for each of 48 tokens and 16 for each of 4,000 records.
class CacheDisk : public Disk {
 protected:
  static constexpr int records = 4000, tokens = 48;
  CacheDisk() {
    std::string record = "{\"input_ids\":[1";
    for (int i = 1; i < tokens; ++i) record += ",2";
    std::string content;
    for (int i = 0; i < records; ++i) content += record + "]}\n";
    write_file(temporary_ / "data.jsonl", content);
  }
  Outcome dry_run(const fs::path& cache, const fs::path& output) const {
    TrainCommand c = command("unused", 3);
    c.set("data", (temporary_ / "data.jsonl").string()).set("output_dir", output.string());
    return run(c.set("cache_dir", cache.string()).flag("dry_run").words(), temporary_.path());
  }
  const fs::path disk_ = temporary_ / "disk";
};

TEST_F(CacheDisk, ACacheWithoutRoomIsRefusedBeforeItIsMade) {
  const SmallDisk disk(disk_, "size=1m,mode=0700");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small tmpfs needs CAP_SYS_ADMIN";
  expect_refusal(dry_run(disk_, temporary_ / "run"),
                 {"no space left on " + disk_.string(), "the token cache of ", "data.jsonl takes 1.6 MB", " free, ",
                  " missing", "another --cache_dir"});
  EXPECT_TRUE(fs::is_empty(disk_));
  // eval asks the same.
  expect_refusal(run({test::binary(), "eval", "--model", (fixture_ / "model").string(), "--data",
                      (temporary_ / "data.jsonl").string(), "--cache_dir", disk_.string(), "--max_length", "48",
                      "--device", "cpu"},
                     temporary_.path()),
                 {"no space left on " + disk_.string(), "takes 1.6 MB"});
  EXPECT_TRUE(fs::is_empty(disk_));
}

// The model takes 69 kB and a checkpoint 480 kB.
TEST_F(CacheDisk, CacheAndOutputOnOneDiskAddUp) {
  const SmallDisk disk(disk_, "size=2m");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small tmpfs needs CAP_SYS_ADMIN";
  expect_refusal(dry_run(disk_ / "cache", disk_ / "run"),
                 {"the token cache of ", ", the run's model and first checkpoint ", " missing",
                  "another --cache_dir or --output_dir"});
  EXPECT_TRUE(fs::is_empty(disk_ / "cache"));
  const Outcome apart = dry_run(disk_ / "cache", temporary_ / "run");
  EXPECT_EQ(apart.exit_code, 0) << apart.err;
  EXPECT_NE(apart.err.find("token cache: at most 1.6 MB by an estimate, in " + (disk_ / "cache").string()),
            std::string::npos)
      << apart.err;
  // One that is there costs nothing, however full the disk is.
  write_file(disk_ / "other", std::string(300'000, 'x'));
  const Outcome again = dry_run(disk_ / "cache", temporary_ / "run");
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.err.find("token cache: "), std::string::npos) << again.err;
}

}  // namespace
}  // namespace so::test
