// When a run saves and evaluates, and where a part of an epoch ends.
#include <gtest/gtest.h>

#include <set>

#include "support/files.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;
using Steps = std::set<std::int64_t>;

class CadenceRun : public testing::Test {
 protected:
  // An epoch of the 120 records is 5 steps.
  TrainCommand command(const std::string& output) const {
    TrainCommand c(model_fixture("qwen3-tied") / "model", data_, temporary_ / output);
    c.set("lr", "1e-3").set("batch_size", "24").set("max_length", "24").set("shuffle", "true");
    return c.set("eval_data", data_.string()).set("cache_dir", (temporary_ / "cache").string());
  }
  Outcome finish(const TrainCommand& c) const {
    Outcome o = run(c.words(), temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return o;
  }
  Steps saved(const std::string& output) const {
    Steps steps;
    for (const auto& entry : fs::directory_iterator(temporary_ / output))
      if (const std::string name = entry.path().filename().string(); name.starts_with("checkpoint-"))
        steps.insert(std::stoll(name.substr(name.find('-') + 1)));
    return steps;
  }
  Steps with(const std::string& output, const char* key) const {
    Steps steps;
    for (const auto& line : read_metrics(temporary_ / output))
      if (line.contains(key)) steps.insert(line.at("step").get<std::int64_t>());
    return steps;
  }

  TemporaryDirectory temporary_;
  fs::path data_ = model_fixture("qwen3-tied") / "data.jsonl";
};

TEST_F(CadenceRun, SavesAndEvaluatesAfterEachEpochAndEndsInAPartOfOne) {
  const Outcome o =
      finish(command("run").set("num_train_epochs", "2.5").set("save_strategy", "epoch").set("eval_strategy", "epoch"));
  EXPECT_EQ(with("run", "loss").size(), 13u);
  EXPECT_EQ(saved("run"), (Steps{5, 10, 13}));
  EXPECT_EQ(with("run", "eval_loss"), (Steps{0, 5, 10, 13}));
  EXPECT_NE(o.err.find("checkpoints after each epoch and at the end"), std::string::npos) << o.err;
  EXPECT_NE(o.err.find(", 3 checkpoints of "), std::string::npos) << o.err;

  // From the end of an epoch, whose evaluation is there, to the same bytes; and on to a whole one.
  finish(command("again")
             .set("num_train_epochs", "2.5")
             .set("save_strategy", "no")
             .set("eval_strategy", "no")
             .set("resume", (temporary_ / "run" / "checkpoint-10").string()));
  EXPECT_EQ(saved("again"), Steps{13});
  EXPECT_EQ(with("again", "eval_loss"), Steps{13});
  EXPECT_TRUE(read_file(temporary_ / "again" / "model.safetensors") ==
              read_file(temporary_ / "run" / "model.safetensors"));
  finish(command("run").set("num_train_epochs", "3").flag("resume"));
  EXPECT_EQ(with("run", "loss").size(), 15u);
  expect_refusal(run(command("run").set("num_train_epochs", "2.5").flag("resume").words(), temporary_.path()),
                 {"of a run of 15 steps, and 13 are asked for", "--num_train_epochs 3"});
}

// Where the signal ends an evaluation that follows an epoch, the resumed run begins with it.
TEST_F(CadenceRun, ALostEvaluationOfAnEpochIsMadeUpFor) {
  const auto c = [&](const char* output) {
    return command(output).set("num_train_epochs", "2").set("save_strategy", "epoch").set("eval_strategy", "epoch");
  };
  finish(c("run"));
  fs::remove_all(temporary_ / "run" / "checkpoint-10");
  std::string kept;
  std::istringstream lines(read_file(temporary_ / "run" / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);)
    if (line.find("\"step\":5,\"eval_loss\"") == std::string::npos) kept += line + "\n";
  write_file(temporary_ / "run" / "metrics.jsonl", kept);
  ASSERT_EQ(with("run", "eval_loss"), (Steps{0, 10}));
  finish(c("run").flag("resume"));
  EXPECT_EQ(with("run", "eval_loss"), (Steps{0, 5, 10}));
}

}  // namespace
}  // namespace so::test
