// --save_only_model: checkpoints without optimizer state.
#include <gtest/gtest.h>

#include "support/files.h"
#include "support/label.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

class OnlyModel : public testing::Test {
 protected:
  TrainCommand command(const std::string& output) const {
    TrainCommand c(model_fixture("qwen3-tied") / "model", data_, temporary_ / output);
    c.set("lr", "1e-3")
        .set("batch_size", "24")
        .set("max_length", "24")
        .set("cache_dir", (temporary_ / "cache").string());
    return c.set("max_steps", "4").set("save_steps", "2");
  }
  Outcome run_words(const std::vector<std::string>& words) const { return run(words, temporary_.path()); }
  std::vector<std::string> program(std::vector<std::string> words) const {
    words.insert(words.begin(), test::binary());
    return words;
  }

  TemporaryDirectory temporary_;
  fs::path data_ = model_fixture("qwen3-tied") / "data.jsonl";
};

SO_LABEL(tsan, "OnlyModel.CheckpointsHoldTheSameModelAndNothingToResumeFrom");
TEST_F(OnlyModel, CheckpointsHoldTheSameModelAndNothingToResumeFrom) {
  for (const bool only : {false, true}) {
    TrainCommand c = command(only ? "only" : "whole");
    if (only) c.flag("save_only_model");
    const Outcome o = run_words(c.words());
    ASSERT_EQ(o.exit_code, 0) << o.err;
    EXPECT_EQ(o.err.find("of the model alone") != std::string::npos, only) << o.err;
  }
  const fs::path only = temporary_ / "only", whole = temporary_ / "whole";
  for (const char* checkpoint : {"checkpoint-2", "checkpoint-4"}) {
    EXPECT_EQ(read_file(only / checkpoint / "model.safetensors"), read_file(whole / checkpoint / "model.safetensors"));
    for (const char* state : {"exp_avg.safetensors", "exp_avg_sq.safetensors", "master.safetensors"})
      EXPECT_FALSE(fs::exists(only / checkpoint / state)) << state;
    EXPECT_TRUE(fs::exists(whole / checkpoint / "exp_avg.safetensors"));
  }
  EXPECT_EQ(read_file(only / "model.safetensors"), read_file(whole / "model.safetensors"));

  // They are whole as what they are, and a new run can begin with one.
  const Outcome verified = run_words(program({"verify", only.string()}));
  EXPECT_EQ(verified.exit_code, 0) << verified.out;
  TrainCommand next(only / "checkpoint-2", data_, temporary_ / "next");
  next.set("max_length", "24").set("max_steps", "1").set("cache_dir", (temporary_ / "cache").string());
  EXPECT_EQ(run_words(next.words()).exit_code, 0);

  // No run goes on from one, and nothing changes.
  const std::string metrics = read_file(only / "metrics.jsonl");
  expect_refusal(run_words(command("only").set("max_steps", "6").flag("resume").words()),
                 {"checkpoint-4 holds the model alone (--save_only_model)", "--model"});
  expect_refusal(run_words(command("other").set("resume", (only / "checkpoint-2").string()).words()),
                 {"checkpoint-2 holds the model alone"});
  EXPECT_EQ(read_file(only / "metrics.jsonl"), metrics);
  // One that has lost its state is damaged still.
  fs::remove(whole / "checkpoint-4" / "exp_avg.safetensors");
  EXPECT_EQ(run_words(program({"verify", whole.string()})).exit_code, 1);
}

TEST_F(OnlyModel, TheBestIsWrittenAtTheEnd) {
  TrainCommand c = command("best").set("eval_data", data_.string()).set("eval_steps", "2").set("lr", "3");
  c.flag("save_only_model").flag("load_best_model_at_end").set("max_grad_norm", "0").set("warmup", "0");
  const Outcome o = run_words(c.words());
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const auto state = read_json(temporary_ / "best" / "checkpoint-4" / "trainer_state.json");
  EXPECT_EQ(state.at("only_model"), true);
  const std::string best = "checkpoint-" + state.at("best_global_step").dump();
  EXPECT_EQ(read_file(temporary_ / "best" / "model.safetensors"),
            read_file(temporary_ / "best" / best / "model.safetensors"));
}

}  // namespace
}  // namespace so::test
