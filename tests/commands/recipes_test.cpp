// The recipes, each dry on a tiny model on the CPU device.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/files.h"
#include "support/mpirun.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/training_run.h"

namespace so::test {
namespace {

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(test::source_tree()) / "recipes"))
    if (const std::string name = entry.path().filename().string(); name.starts_with("finetune_")) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

class Recipes : public testing::Test {
 protected:
  // Through env, which replaces this process's settings of the recipe's variables by `variables`.
  Outcome recipe(const std::string& name, const std::vector<std::string>& variables,
                 const std::vector<std::string>& arguments) const {
    std::vector<std::string> words{"/usr/bin/env"};
    for (const char* unset : {"MODEL_DIR", "DATA", "OUTPUT_DIR", "MAX_LENGTH", "GPUS", "MICRO_BATCHES"})
      words.insert(words.end(), {"-u", unset});
    words.push_back(std::string("SUPEROFFLOAD=") + test::binary());
    words.insert(words.end(), variables.begin(), variables.end());
    words.push_back((std::filesystem::path(test::source_tree()) / "recipes" / name).string());
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run(words, temporary_.path());
  }
  std::vector<std::string> variables() const {
    const auto fixture = model_fixture("qwen3-tied");
    return {"MODEL_DIR=" + (fixture / "model").string(), "DATA=" + (fixture / "data.jsonl").string(),
            "OUTPUT_DIR=" + output().string(), "MAX_LENGTH=48"};
  }
  std::filesystem::path output() const { return temporary_ / "below" / "out"; }
  std::filesystem::path config() const { return temporary_ / "below" / "out_deepspeed.json"; }
  std::vector<std::string> options(const std::vector<std::string>& first) const {
    std::vector<std::string> all = first;
    all.insert(all.end(), {"--dry_run", "--device", "cpu", "--cache_dir", (temporary_ / "cache").string()});
    return all;
  }
  static void expect_in(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }

  TemporaryDirectory temporary_;
};

TEST_F(Recipes, AreThePublishedOnes) {
  EXPECT_EQ(recipe_names(), (std::vector<std::string>{"finetune_gpt-oss-20b_1gpu.sh", "finetune_llama-70b_4gpu.sh",
                                                      "finetune_llama-8b_1gpu.sh", "finetune_phi-4_1gpu.sh",
                                                      "finetune_qwen3-14b_1gpu.sh", "finetune_qwen3-30b-a3b_2gpu.sh",
                                                      "finetune_seed-oss-36b_2gpu.sh"}));
}

TEST_F(Recipes, PlanARunWithThePublishedSettings) {
  for (const std::string& name : recipe_names()) {
    SCOPED_TRACE(name);
    const int gpus = name[name.find("gpu.sh") - 1] - '0';
    if (gpus > 1 && !why_no_ranks().empty()) continue;
    const Outcome outcome = recipe(name, variables(), options({"superoffload"}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    expect_in(outcome.out, "dry run: it fits");
    EXPECT_EQ(outcome.out.find("ranks x ") != std::string::npos, gpus > 1) << outcome.out;
    EXPECT_FALSE(std::filesystem::exists(output()));
    const auto json = read_json(config());
    EXPECT_EQ(json.at("train_batch_size"), 4 * gpus);
    EXPECT_EQ(json.at("bf16").at("enabled"), true);
    EXPECT_EQ(json.at("zero_optimization").at("offload_optimizer").at("super_offload"), true);
  }
}

TEST_F(Recipes, TakeModeAndBatchSize) {
  const Outcome outcome = recipe("finetune_llama-8b_1gpu.sh", variables(), options({"zerooffload", "2"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_in(outcome.out, "zerooffload");
  expect_in(outcome.out, "1 x 2 rows");
  const auto json = read_json(config());
  EXPECT_EQ(json.at("train_batch_size"), 2);
  EXPECT_EQ(json.at("zero_optimization").at("offload_optimizer").at("super_offload"), false);
}

// The same rows of a step, in less memory.
TEST_F(Recipes, TakeRowsInSeveralMicroBatches) {
  auto several = variables();
  several.push_back("MICRO_BATCHES=2");
  const Outcome outcome = recipe("finetune_llama-8b_1gpu.sh", several, options({"superoffload"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_in(outcome.out, "2 x 2 rows");
  EXPECT_EQ(read_json(config()).at("train_batch_size"), 4);
  EXPECT_EQ(read_json(config()).at("gradient_accumulation_steps"), 2);
}

TEST_F(Recipes, TrainWhenNotDry) {
  const Outcome outcome = recipe(
      "finetune_qwen3-14b_1gpu.sh", variables(),
      {"superoffload", "1", "--device", "cpu", "--max_steps", "2", "--cache_dir", (temporary_ / "cache").string()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(std::filesystem::exists(output() / "model.safetensors"));
}

TEST_F(Recipes, SayWhatIsMissing) {
  const std::string name = "finetune_phi-4_1gpu.sh";
  struct Case {
    std::vector<std::string> variables, arguments;
    std::string message;
  };
  const auto all = variables();
  const std::vector<Case> cases = {
      {all, {}, "superoffload or zerooffload"},
      {all, {"fast"}, "not 'fast'"},
      {all, {"superoffload", "four"}, "'four'"},
      {all, {"superoffload", "0"}, "'0'"},
      {{all[0], all[1], "GPUS=all"}, {"superoffload"}, "GPUS=all is no number"},
      {{all[0], all[1], "MICRO_BATCHES=0"}, {"superoffload"}, "MICRO_BATCHES=0 is no number"},
      {{all[0], all[1], "MICRO_BATCHES=3"}, {"superoffload"}, "the 4 rows of a step do not go into"},
      {{"MODEL_DIR=" + temporary_.path().string(), all[1]}, {"superoffload"}, "no config.json"},
      {{all[0]}, {"superoffload"}, "set DATA"},
      {{all[0], all[1], "SUPEROFFLOAD=/nowhere"}, {"superoffload"}, "SUPEROFFLOAD=/nowhere"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    const Outcome outcome = recipe(name, c.variables, c.arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    expect_in(outcome.err, name + ": ");
    expect_in(outcome.err, c.message);
  }
  EXPECT_EQ(recipe(name, {}, {"--help"}).exit_code, 0);
  expect_in(recipe(name, {}, {"--help"}).out, "microsoft/phi-4");
  // The recipe fails where the program refuses: models and data may be those of the Hugging Face hub.
  const std::string cache = "HF_HUB_CACHE=" + temporary_.path().string();
  expect_in(recipe(name, {all[1], all[2], cache}, {"superoffload"}).err, "hf download microsoft/phi-4, or");
  expect_in(recipe(name, {all[0], all[2], cache, "DATA=tatsu-lab/alpaca"}, {"superoffload"}).err,
            "hf download tatsu-lab/alpaca --repo-type dataset, or");
  const Outcome outcome = recipe(name, variables(), options({"superoffload", "--max_length", "1000000"}));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
}

}  // namespace
}  // namespace so::test
