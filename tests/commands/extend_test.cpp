// Resuming a finished run: with more steps it is extended, without it says that it is finished.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/files.h"
#include "support/label.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Returns the results in each line of metrics, without times and memory.
std::vector<json> results_of(const fs::path& output) {
  std::vector<json> all;
  for (const json& line : read_metrics(output)) {
    json result;
    for (const char* key : {"step", "loss", "grad_norm", "lr", "eval_loss"})
      if (line.contains(key)) result[key] = line[key];
    all.push_back(result);
  }
  return all;
}

class ExtendedRun : public testing::Test {
 protected:
  TrainCommand command(const std::string& output, int steps, const std::string& scheduler,
                       const std::string& warmup) const {
    TrainCommand c(model_fixture("qwen3-tied") / "model", data_, temporary_ / output);
    c.set("lr", "2e-3").set("lr_scheduler", scheduler).set("warmup", warmup).set("batch_size", "4");
    c.set("max_length", "48").set("shuffle", "true").set("dtype", "bf16").set("max_steps", std::to_string(steps));
    return c.set("cache_dir", (temporary_ / "cache").string());
  }
  Outcome finish(const TrainCommand& c) const {
    Outcome o = run(c.words(), temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return o;
  }
  std::vector<double> rates(const std::string& output) const {
    std::vector<double> all;
    for (const json& line : read_metrics(temporary_ / output)) all.push_back(line.at("lr"));
    return all;
  }

  TemporaryDirectory temporary_;
  fs::path data_ = model_fixture("qwen3-tied") / "data.jsonl";
};

SO_LABEL(sweep, "ExtendedRun.AtAConstantRateEndsInTheBytesOfTheLongerRun");
TEST_F(ExtendedRun, AtAConstantRateEndsInTheBytesOfTheLongerRun) {
  finish(command("longer", 14, "constant", "0"));
  finish(command("run", 6, "constant", "0"));
  const Outcome o = finish(command("run", 14, "constant", "0").flag("resume"));
  EXPECT_NE(o.err.find("the run is extended from 6 to 14 steps: the learning rate stays constant"), std::string::npos)
      << o.err;
  EXPECT_EQ(results_of(temporary_ / "run"), results_of(temporary_ / "longer"));
  for (const char* file : {"model.safetensors", "checkpoint-14/master.safetensors", "checkpoint-14/exp_avg.safetensors",
                           "checkpoint-14/exp_avg_sq.safetensors"})
    EXPECT_TRUE(read_file(temporary_ / "run" / file) == read_file(temporary_ / "longer" / file)) << file;
}

// A warm-up that is a share of the run would be longer in the longer run, and the rate would fall back into it.
SO_LABEL(sweep, "ExtendedRun.KeepsItsWarmUp");
TEST_F(ExtendedRun, KeepsItsWarmUp) {
  finish(command("run", 6, "constant", "0.5").set("save_steps", "3"));
  finish(command("run", 20, "constant", "0.5").flag("resume").set("save_steps", "3"));
  const std::string ninth = (temporary_ / "run" / "checkpoint-9").string();  // half of 20 lies behind it
  finish(command("run", 24, "constant", "0.5").set("resume", ninth).set("save_steps", "3"));
  std::vector<double> expected(24, 2e-3);
  for (const int step : {0, 1, 2}) expected[static_cast<std::size_t>(step)] = 2e-3 * step / 3;
  EXPECT_EQ(rates("run").size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_DOUBLE_EQ(rates("run")[i], expected[i]) << "step " << i + 1;
}

// The checkpoints beyond the one from which a run goes on are of another course: they are neither resumed from, nor do
// they push out what the run saves now.
TEST_F(ExtendedRun, GoesOnFromAnEarlierCheckpointOnItsOwnCourse) {
  finish(command("run", 6, "linear", "0").set("save_steps", "2"));
  const fs::path run = temporary_ / "run";
  const std::string sixth = read_file(run / "checkpoint-6" / "master.safetensors");
  write_file(run / "checkpoint-4" / "notes.txt", "mine");
  const Outcome o = finish(command("run", 8, "linear", "0")
                               .set("save_steps", "3")
                               .set("save_total_limit", "1")
                               .set("resume", (run / "checkpoint-2").string()));
  for (const char* step : {"4", "6"})
    EXPECT_NE(o.err.find(fmt::format("checkpoint-{} is of the course that the run took before it was resumed from step "
                                     "2: it is now",
                                     step)),
              std::string::npos)
        << o.err;
  EXPECT_EQ(read_file(run / "checkpoint-4.kept-1" / "notes.txt"), "mine");
  EXPECT_TRUE(read_file(run / "checkpoint-6.kept-1" / "master.safetensors") == sixth) << "another rate since";
  for (const int step : {2, 3, 4, 6}) EXPECT_FALSE(fs::exists(run / fmt::format("checkpoint-{}", step))) << step;
  ASSERT_TRUE(fs::exists(run / "checkpoint-8")) << "what is saved last is kept";
  const Outcome again = finish(command("run", 10, "linear", "0").flag("resume"));
  EXPECT_NE(again.err.find("resumed from " + (run / "checkpoint-8").string()), std::string::npos) << again.err;
  EXPECT_EQ(rates("run").size(), 10u);
}

TEST_F(ExtendedRun, FollowsTheScheduleOfTheNewLength) {
  finish(command("run", 6, "linear", "0"));
  const Outcome o = finish(command("run", 12, "linear", "0").flag("resume"));
  EXPECT_NE(o.err.find("from here on the learning rate is that of a linear schedule over 12 steps"), std::string::npos)
      << o.err;
  const auto rate = rates("run");
  ASSERT_EQ(rate.size(), 12u);
  for (std::size_t done = 0; done < 12; ++done)
    EXPECT_DOUBLE_EQ(rate[done], 2e-3 * (done < 6 ? (6. - double(done)) / 6 : (12. - double(done)) / 12));
}

TEST_F(ExtendedRun, IsNotShortened) {
  finish(command("run", 6, "constant", "0"));
  const auto before = snapshot(temporary_ / "run");
  expect_refusal(run(command("run", 5, "constant", "0").flag("resume").words(), temporary_.path()),
                 {"of a run of 6 steps, and 5 are asked for", "--max_steps 6"});
  EXPECT_TRUE(snapshot(temporary_ / "run") == before);
}

TEST_F(ExtendedRun, IsFinishedWithoutMoreSteps) {
  const TrainCommand c = command("run", 6, "cosine", "0.1").set("eval_data", data_.string());
  finish(c);
  const auto before = snapshot(temporary_ / "run");
  TrainCommand again = c;
  again.flag("resume");
  const Outcome o = finish(again);
  EXPECT_NE(o.out.find("holds the finished run: 6 of 6 steps"), std::string::npos) << o.out;
  EXPECT_TRUE(snapshot(temporary_ / "run") == before) << "a finished run was changed";

  // Killed between its last checkpoint and its model, it has only that to write.
  const auto results = results_of(temporary_ / "run");
  const std::string weights = read_file(temporary_ / "run" / "model.safetensors");
  fs::remove(temporary_ / "run" / "model.safetensors");
  finish(again);
  EXPECT_TRUE(read_file(temporary_ / "run" / "model.safetensors") == weights);
  EXPECT_EQ(results_of(temporary_ / "run"), results);
}

// A signal during an evaluation does not wait for it; the resumed run makes up for it.
TEST_F(ExtendedRun, EvaluatesWhatASignalCutShort) {
  const std::string records = read_file(data_);
  std::string many;
  for (int i = 0; i < 6; ++i) many += records;
  write_file(temporary_ / "many.jsonl", many);
  const auto with_evaluation = [&](const std::string& output) {
    return command(output, 3, "cosine", "0")
        .set("eval_data", (temporary_ / "many.jsonl").string())
        .set("eval_steps", "2");
  };
  finish(with_evaluation("reference"));
  {
    Process process(with_evaluation("run").words(), temporary_.path());
    const fs::path metrics = temporary_ / "run" / "metrics.jsonl";
    const auto lines = [&] {
      if (!fs::exists(metrics)) return std::ptrdiff_t{0};
      const std::string text = read_file(metrics);
      return std::count(text.begin(), text.end(), '\n');
    };
    // The start, an evaluation, two steps: then comes the next evaluation.
    while (!process.ended() && lines() < 4) std::this_thread::sleep_for(std::chrono::microseconds(100));
    process.send(SIGTERM);
    const Outcome o = process.wait();
    ASSERT_EQ(o.exit_code, 130) << o.err;
  }
  finish(with_evaluation("run").flag("resume"));
  EXPECT_EQ(results_of(temporary_ / "run"), results_of(temporary_ / "reference"));
  EXPECT_TRUE(read_file(temporary_ / "run" / "model.safetensors") ==
              read_file(temporary_ / "reference" / "model.safetensors"));
}

}  // namespace
}  // namespace so::test
