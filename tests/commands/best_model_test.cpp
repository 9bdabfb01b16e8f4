// --load_best_model_at_end and --early_stopping_patience: runs that overfit, stopped and resumed.
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "support/files.h"
#include "support/label.h"
#include "support/mpirun.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Steps = std::set<std::int64_t>;

class BestModel : public testing::Test {
 protected:
  static constexpr std::int64_t last_step = 24;

  // Few records to learn by heart, others to evaluate on.
  void SetUp() override {
    std::istringstream lines(read_file(model_fixture("qwen3-tied") / "data.jsonl"));
    std::string line, few, others;
    for (int i = 0; std::getline(lines, line); ++i) (i < 6 ? few : others) += line + "\n";
    write_file(data_, few);
    write_file(held_out_, others);
  }
  TrainCommand command(const std::string& output) const {
    TrainCommand c(model_fixture("qwen3-tied") / "model", data_, temporary_ / output);
    c.set("lr", "2e-2").set("lr_scheduler", "constant").set("warmup", "0").set("batch_size", "3");
    c.set("max_length", "48").set("max_steps", std::to_string(last_step)).set("save_strategy", "no");
    c.set("eval_data", held_out_.string()).set("eval_steps", "2").set("cache_dir", (temporary_ / "cache").string());
    return c;
  }
  TrainCommand best(const std::string& output) const { return command(output).flag("load_best_model_at_end"); }
  Outcome finish(const TrainCommand& c) const {
    Outcome o = run(c.words(), temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return o;
  }
  fs::path at(const std::string& output, std::int64_t step) const {
    return temporary_ / output / ("checkpoint-" + std::to_string(step));
  }
  Steps saved(const std::string& output) const {
    Steps steps;
    for (const auto& entry : fs::directory_iterator(temporary_ / output))
      if (const std::string name = entry.path().filename().string(); name.starts_with("checkpoint-"))
        steps.insert(std::stoll(name.substr(name.find('-') + 1)));
    return steps;
  }
  // The losses of the evaluations after steps.
  std::map<std::int64_t, double> evaluations(const std::string& output) const {
    std::map<std::int64_t, double> all;
    for (const json& line : read_metrics(temporary_ / output))
      if (line.contains("eval_loss") && line.at("step") > 0) {
        EXPECT_TRUE(all.emplace(line.at("step"), line.at("eval_loss")).second) << line;
      }
    return all;
  }
  static std::int64_t best_of(const std::map<std::int64_t, double>& losses) {
    return std::min_element(losses.begin(), losses.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->first;
  }
  bool same_model(const fs::path& a, const fs::path& b) const {
    return read_file(a / "model.safetensors") == read_file(b / "model.safetensors") &&
           read_file(a / "config.json") == read_file(b / "config.json");
  }

  TemporaryDirectory temporary_;
  const fs::path data_ = temporary_ / "few.jsonl", held_out_ = temporary_ / "others.jsonl";
};

TEST_F(BestModel, IsTheFinalOneAndIsKept) {
  const Outcome o = finish(best("run").set("save_total_limit", "1"));
  const auto losses = evaluations("run");
  const std::int64_t step = best_of(losses);
  ASSERT_GT(step, 2) << "several are the best in turn";
  ASSERT_LT(step, last_step) << "the run overfits";
  EXPECT_EQ(saved("run"), (Steps{step, last_step}));
  EXPECT_TRUE(same_model(temporary_ / "run", at("run", step)));
  EXPECT_FALSE(same_model(temporary_ / "run", at("run", last_step)));
  EXPECT_NE(o.err.find("the model is the best one, of step " + std::to_string(step)), std::string::npos) << o.err;
  const json state = read_json(at("run", last_step) / "trainer_state.json");
  EXPECT_EQ(state.at("best_global_step"), step);
  EXPECT_EQ(state.at("best_metric").get<double>(), losses.at(step));
  EXPECT_EQ(state.at("evaluations_without_gain"), (last_step - step) / 2);
  EXPECT_EQ(run({test::binary(), "verify", (temporary_ / "run").string()}, temporary_.path()).exit_code, 0);

  // It is the model of a run that ends there.
  finish(command("shorter").set("max_steps", std::to_string(step)));
  EXPECT_TRUE(same_model(temporary_ / "run", temporary_ / "shorter"));
  // A plain run's last model is the other one.
  finish(command("plain"));
  EXPECT_TRUE(same_model(temporary_ / "plain", at("run", last_step)));
}

TEST_F(BestModel, StopsEarlyAndIsFinishedThen) {
  finish(command("whole"));
  const auto losses = evaluations("whole");
  const std::int64_t patience = 2, step = best_of(losses), end = step + 2 * patience;
  ASSERT_LT(end, last_step);
  const TrainCommand c = best("run").set("early_stopping_patience", "2").set("save_total_limit", "1");
  const Outcome o = finish(c);
  EXPECT_NE(o.err.find("stopped early: 2 evaluations in a row"), std::string::npos) << o.err;
  EXPECT_EQ(saved("run"), (Steps{step, end}));
  EXPECT_EQ(evaluations("run"), (std::map<std::int64_t, double>(losses.begin(), losses.upper_bound(end))));
  EXPECT_TRUE(same_model(temporary_ / "run", at("run", step)));

  const auto before = snapshot(temporary_ / "run");
  TrainCommand again = c;
  again.flag("resume");
  EXPECT_NE(finish(again).out.find("holds the finished run, which stopped early"), std::string::npos);
  EXPECT_TRUE(snapshot(temporary_ / "run") == before) << "a finished run was changed";
  // Killed between its last checkpoint and its model, it has only that to write.
  const std::string weights = read_file(temporary_ / "run" / "model.safetensors");
  fs::remove(temporary_ / "run" / "model.safetensors");
  finish(again);
  EXPECT_TRUE(read_file(temporary_ / "run" / "model.safetensors") == weights);
  EXPECT_EQ(saved("run"), (Steps{step, end}));

  // Without --load_best_model_at_end the last one is the model.
  finish(command("last").set("early_stopping_patience", "2"));
  EXPECT_EQ(saved("last"), Steps{end});
  EXPECT_TRUE(same_model(temporary_ / "last", at("run", end)));
}

SO_LABEL(sweep, "BestModel.ResumesWithItsBestAndItsPatience");
TEST_F(BestModel, ResumesWithItsBestAndItsPatience) {
  const TrainCommand c = best("run").set("early_stopping_patience", "3").set("save_strategy", "steps");
  finish(TrainCommand(c).set("save_steps", "2"));
  const std::int64_t step = best_of(evaluations("run")), end = step + 6;
  ASSERT_LT(end, last_step);
  ASSERT_TRUE(saved("run").contains(end));
  const std::string weights = read_file(temporary_ / "run" / "model.safetensors");
  const std::string state = read_file(at("run", end) / "trainer_state.json");
  const auto metrics = evaluations("run");

  TrainCommand resumed = TrainCommand(c).set("save_steps", "100").set("resume", at("run", step + 4).string());
  expect_refusal(run(TrainCommand(resumed).set("eval_steps", "4").words(), temporary_.path()),
                 {"eval_steps: 2 recorded, 4 now"});
  expect_refusal(run(TrainCommand(resumed).set("early_stopping_patience", "9").words(), temporary_.path()),
                 {"early_stopping_patience: 3 recorded, 9 now"});
  expect_refusal(run(TrainCommand(resumed).set("eval_data", data_.string()).words(), temporary_.path()),
                 {"other records to evaluate on", data_.string()});
  expect_refusal(
      run(TrainCommand(resumed).set("output_dir", (temporary_ / "other").string()).words(), temporary_.path()),
      {"keeps the best checkpoint in --output_dir", "is elsewhere"});
  const fs::path best_one = at("run", step), aside = temporary_ / "aside";
  fs::rename(best_one, aside);
  expect_refusal(run(resumed.words(), temporary_.path()), {best_one.string(), "is missing"});
  fs::rename(aside, best_one);

  finish(resumed);
  EXPECT_TRUE(read_file(temporary_ / "run" / "model.safetensors") == weights);
  EXPECT_EQ(evaluations("run"), metrics);
  json then = json::parse(state), now = read_json(at("run", end) / "trainer_state.json");
  for (json* j : {&then, &now})
    for (const char* changed : {"save_steps", "resume"}) j->at("options").erase(changed);
  EXPECT_EQ(then, now);
}

// A damaged best checkpoint costs its model, says so, and leaves that of the last step.
TEST_F(BestModel, ThatIsDamagedIsNotPassedOff) {
  const TrainCommand c = best("run");
  finish(c);
  const std::int64_t step = best_of(evaluations("run"));
  fs::remove(temporary_ / "run" / "model.safetensors");
  std::string bytes = read_file(at("run", step) / "model.safetensors");
  bytes.back() ^= 1;
  write_file(at("run", step) / "model.safetensors", bytes);
  const Outcome o = run(TrainCommand(c).flag("resume").words(), temporary_.path());
  EXPECT_EQ(o.exit_code, 1) << o.err;
  EXPECT_NE(o.err.find("the best model cannot be written"), std::string::npos) << o.err;
  EXPECT_TRUE(same_model(temporary_ / "run", at("run", last_step)));
}

SO_LABEL(sweep, "BestModel.SurvivesSignals");
TEST_F(BestModel, SurvivesSignals) {
  const TrainCommand c = best("run").set("early_stopping_patience", "2");
  finish(TrainCommand(c).set("output_dir", (temporary_ / "whole").string()));
  const auto metrics = [&](const std::string& output) {
    const fs::path file = temporary_ / output / "metrics.jsonl";
    const std::string text = fs::exists(file) ? read_file(file) : "";
    return std::count(text.begin(), text.end(), '\n');
  };
  TrainCommand next = c;
  for (int code = 130; code == 130;) {
    // Its start, which it records when it is ready for signals, and two lines more.
    const std::ptrdiff_t lines = metrics("run") + 3;
    Process process(next.words(), temporary_.path());
    while (!process.ended() && metrics("run") < lines) std::this_thread::sleep_for(std::chrono::microseconds(100));
    process.send(SIGTERM);
    const Outcome o = process.wait();
    // One that comes when all is done, or almost, has its default effect. Nothing that was saved is lost then.
    code = o.signal == SIGTERM ? 130 : o.exit_code;
    ASSERT_TRUE(code == 130 || code == 0) << o.err;
    next = c;
    next.flag("resume");
  }
  EXPECT_EQ(evaluations("run"), evaluations("whole"));
  EXPECT_TRUE(same_model(temporary_ / "run", temporary_ / "whole"));
}

TEST_F(BestModel, IsTheSameDecisionOnEveryRank) {
  if (const std::string reason = why_no_ranks(); !reason.empty()) GTEST_SKIP() << reason;
  const Outcome o = finish(best("run").set("early_stopping_patience", "2").set("gpus", "2"));
  const std::int64_t step = best_of(evaluations("run"));
  EXPECT_NE(o.err.find("stopped early"), std::string::npos) << o.err;
  EXPECT_TRUE(saved("run").contains(step + 4));
  EXPECT_TRUE(same_model(temporary_ / "run", at("run", step)));
}

}  // namespace
}  // namespace so::test
