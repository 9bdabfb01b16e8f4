// A run from a YAML file that says all that a run may be told at once: however it is begun, stopped or saved, it ends
// with the same model.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "support/files.h"
#include "support/label.h"
#include "support/on_gpu.h"
#include "support/process.h"
#include "support/speaking_model.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class FullRunFile : public testing::Test {
 protected:
  void SetUp() override {
    const fs::path model = make_speaking_model(temporary_.path());
    fs::copy_file(fs::path(fixtures()) / "chat" / "templates" / "qwen2_5.jinja", model / "chat_template.jinja");
    std::string chats, texts;
    for (int i = 0; i < 12; ++i) {
      const std::string n = std::to_string(i);
      const json user{{"role", "user"}, {"content", "Count to " + n}};
      chats += json{{"messages", {user, {{"role", "assistant"}, {"content", "One, two, " + n + "."}}}}}.dump() + "\n";
      texts += json{{"text", "Sentence " + n + ": the sea is wide."}}.dump() + "\n";
    }
    write_file(temporary_ / "chats.jsonl", chats);
    write_file(temporary_ / "texts.jsonl", texts);
    write_file(temporary_ / "prompts.txt", "Count to 3\nOne, two,\n");
    write_file(temporary_ / "run.yaml", R"(
model: )" + model.string() + R"(
data: [chats.jsonl, texts.jsonl]
data_weights: [1, 0.5]
validation_split: 4
num_train_epochs: 2.5
batch_size: 3
max_length: 64
lr: 5e-3
lr_scheduler: wsd
decay: 0.4
min_lr: 1e-4
warmup: 0
label_smoothing_factor: 0.1
freeze:
  - model.layers.0.mlp.*
lr_multiplier:
  - model.embed_tokens.*=0.5
  - "*norm.weight=2"
eval_strategy: epoch
save_strategy: epoch
load_best_model_at_end: true
early_stopping_patience: 3
sample_prompts: prompts.txt
sample_max_new_tokens: 5
seed: 7
)");
  }
  std::vector<std::string> command(const std::string& file, const std::string& output,
                                   const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{binary(), "train", "--config", file, "--output_dir", output, "--cache_dir", "cache"};
    words.insert(words.end(), {"--device", on_gpu() ? "cuda" : "cpu"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Outcome finish(const std::vector<std::string>& words) const {
    Outcome o = run(words, temporary_.path(), {.directory = temporary_.path()});
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return o;
  }
  std::string model(const std::string& output) const { return read_file(temporary_ / output / "model.safetensors"); }
  // Reads the steps and evaluations of the record, without times.
  std::vector<json> results(const std::string& output) const {
    std::vector<json> all;
    for (const json& line : read_metrics(temporary_ / output)) {
      json result;
      for (const char* key : {"step", "loss", "grad_norm", "lr", "eval_loss"})
        if (line.contains(key)) result[key] = line[key];
      if (result.size() > 1) all.push_back(result);
    }
    return all;
  }

  const TemporaryDirectory temporary_;
};

TEST_F(FullRunFile, DoesWhatItSays) {
  finish(command("run.yaml", "whole"));
  // 4 of 24 records are held out; the rest of the second file counts half.
  std::vector<double> rates, evaluations;
  for (const json& line : results("whole")) {
    if (line.contains("loss")) rates.push_back(line["lr"]);
    if (line.contains("eval_loss")) evaluations.push_back(line["eval_loss"]);
  }
  ASSERT_GE(rates.size(), 10u);
  EXPECT_EQ(rates.front(), 5e-3);
  EXPECT_EQ(rates[rates.size() / 2], 5e-3);
  EXPECT_LT(rates.back(), 2e-3);
  EXPECT_GT(rates.back(), 1e-4);
  ASSERT_EQ(evaluations.size(), 4u) << "before the first step, after two epochs, and at the end";
  // The model is that of the checkpoint with the least loss, and what was frozen is as it was.
  const auto best = std::min_element(evaluations.begin() + 1, evaluations.end());
  EXPECT_LT(*best, evaluations.front());
  const json state =
      read_json(temporary_ / "whole" / ("checkpoint-" + std::to_string(rates.size())) / "trainer_state.json");
  const std::string checkpoint = "checkpoint-" + std::to_string(state.at("best_global_step").get<int>());
  EXPECT_EQ(model("whole"), read_file(temporary_ / "whole" / checkpoint / "model.safetensors"));
  const StoredTensors before = read_model_weights(temporary_ / "model"),
                      after = read_model_weights(temporary_ / "whole");
  for (const auto& [name, tensor] : before)
    EXPECT_EQ(tensor.values == after.at(name).values, name.starts_with("model.layers.0.mlp.")) << name;

  // A file that was printed is the same run; and so is one whose checkpoints hold the model alone.
  write_file(temporary_ / "printed.yaml", finish(command("run.yaml", "printed", {"--print_config"})).out);
  finish({binary(), "train", "--config", "printed.yaml"});
  finish(command("run.yaml", "only", {"--save_only_model"}));
  for (const char* output : {"printed", "only"}) {
    EXPECT_EQ(results(output), results("whole")) << output;
    EXPECT_EQ(model(output), model("whole")) << output;
    EXPECT_EQ(read_file(temporary_ / output / "samples.jsonl"), read_file(temporary_ / "whole" / "samples.jsonl"));
  }
}

SO_LABEL(sweep, "FullRunFile.EndsAlikeWhereverItIsStopped");
TEST_F(FullRunFile, EndsAlikeWhereverItIsStopped) {
  finish(command("run.yaml", "whole"));
  const auto written = [&] {
    const fs::path file = temporary_ / "run" / "metrics.jsonl";
    const std::string all = fs::exists(file) ? read_file(file) : "";
    return std::count(all.begin(), all.end(), '\n');
  };
  int stops = 0;
  for (bool ended = false; !ended; ++stops) {
    const std::ptrdiff_t lines = written() + 4;
    Process process(
        command("run.yaml", "run", stops == 0 ? std::vector<std::string>{} : std::vector<std::string>{"--resume"}),
        temporary_.path(), {.directory = temporary_.path()});
    while (!process.ended() && written() < lines) std::this_thread::sleep_for(std::chrono::microseconds(100));
    process.send(SIGTERM);
    const Outcome o = process.wait();
    ended = o.exit_code == 0;
    ASSERT_TRUE(ended || o.exit_code == 130 || o.signal == SIGTERM) << o.err;
  }
  EXPECT_EQ(results("run"), results("whole"));
  EXPECT_EQ(model("run"), model("whole"));
}

}  // namespace
}  // namespace so::test
