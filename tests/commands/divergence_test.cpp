// A run whose numbers are no longer finite: it stops, says where that began, keeps what was good and saves nothing bad.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/files.h"
#include "support/label.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/stored_tensor.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

bool says(const std::string& text, const std::vector<std::string>& words) {
  const auto lines = lines_of(text);
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
    return std::all_of(words.begin(), words.end(), [&](const auto& word) { return line.find(word) != line.npos; });
  });
}

class Diverging : public testing::Test {
 protected:
  Diverging() { fs::copy(fixture_ / "model", model_, fs::copy_options::recursive); }

  TrainCommand command(const std::string& output) const {
    TrainCommand c(model_, fixture_ / "data.jsonl", temporary_ / output);
    c.set("batch_size", "2").set("max_length", "48").set("warmup", "0").set("lr_scheduler", "constant");
    return c.set("cache_dir", (temporary_ / "cache").string());
  }
  // A closed gate in front of large numbers in layer 1: the first update opens it, and the next loss is not finite.
  TrainCommand diverging(const std::string& output) const {
    fill_tensor(weights(), "model.layers.1.mlp.gate_proj.weight", 0);
    fill_tensor(weights(), "model.layers.1.mlp.up_proj.weight", 1e36f);
    return command(output).set("lr", "1000");
  }
  Outcome run(const TrainCommand& c) const { return test::run(c.words(), temporary_.path()); }
  bool has(const std::string& output, const std::string& file) const { return fs::exists(temporary_ / output / file); }
  fs::path weights() const { return model_ / "model.safetensors"; }

  TemporaryDirectory temporary_;
  const fs::path fixture_ = model_fixture("llama-untied"), model_ = temporary_ / "model";
};

TEST_F(Diverging, StopsAfterSkippedStepsAndKeepsWhatWasBefore) {
  const Outcome o = run(diverging("out")
                            .set("max_skipped_steps", "4")
                            .set("max_steps", "20")
                            .set("save_steps", "1")
                            .set("save_total_limit", "1"));
  EXPECT_EQ(o.exit_code, 1) << o.err;
  EXPECT_TRUE(says(o.err, {"superoffload: ", "steps 2 to 5", "4 in a row", "--max_skipped_steps 4"})) << o.err;
  EXPECT_TRUE(says(o.err, {"checkpoint-1 ", "before"})) << o.err;
  // The last of the streak is not saved, the one before it is what the limit allows, and the good one stays beside it.
  EXPECT_TRUE(has("out", "checkpoint-1"));
  EXPECT_TRUE(has("out", "checkpoint-4"));
  for (const char* gone : {"checkpoint-2", "checkpoint-3", "checkpoint-5", "model.safetensors", "config.json"})
    EXPECT_FALSE(has("out", gone)) << gone;

  const auto steps = read_metrics(temporary_ / "out");
  ASSERT_EQ(steps.size(), 5u);
  EXPECT_FALSE(steps[0].contains("skipped"));
  EXPECT_EQ(steps[1].at("skipped_tensor"), "lm_head.weight") << "where backward begins";
  const std::string origin = steps[1].at("skipped_origin");
  EXPECT_TRUE(origin.starts_with("layer 1")) << origin;
  EXPECT_TRUE(says(o.err, {"step 2:", origin})) << o.err;
  EXPECT_EQ(steps[4].at("skipped_origin"), "the loss");
  const auto summary = read_metrics(temporary_ / "out", true).back();
  EXPECT_EQ(summary.at("run").at("skipped_steps"), 4);
  EXPECT_EQ(summary.at("run").at("clipped_steps"), 1);
}

TEST_F(Diverging, NeverStopsIfSoAsked) {
  const Outcome o = run(diverging("out").set("max_skipped_steps", "0").set("max_steps", "13"));
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_TRUE(has("out", "model.safetensors"));
  EXPECT_EQ(read_metrics(temporary_ / "out", true).back().at("run").at("skipped_steps"), 12);
}

// Steps that were skipped before a run was resumed count.
SO_LABEL(tsan, "Diverging.AResumedRunGoesOnCounting");
TEST_F(Diverging, AResumedRunGoesOnCounting) {
  const Outcome first =
      run(diverging("out").set("max_skipped_steps", "3").set("max_steps", "20").set("save_steps", "1"));
  ASSERT_EQ(first.exit_code, 1) << first.err;
  EXPECT_EQ(read_json(temporary_ / "out" / "checkpoint-3" / "trainer_state.json").at("skipped_in_a_row"), 2);
  const Outcome second = run(diverging("out")
                                 .set("max_skipped_steps", "5")
                                 .set("max_steps", "20")
                                 .set("save_steps", "1")
                                 .set("resume", "latest"));
  EXPECT_EQ(second.exit_code, 1) << second.err;
  EXPECT_TRUE(says(second.err, {"steps 2 to 6", "5 in a row"})) << second.err;
}

// The loss is finite, its gradient is not: what is named is where backward, which goes from last to first, met it.
TEST_F(Diverging, GradientsAloneAreNamedInTheOrderOfBackward) {
  // A closed gate in front of numbers so large that the gate's own gradient exceeds fp32; what the MLP adds is 0.
  fill_tensor(weights(), "model.layers.1.mlp.gate_proj.weight", 0);
  fill_tensor(weights(), "model.layers.1.mlp.up_proj.weight", 1e37f);
  fill_tensor(weights(), "model.layers.1.mlp.down_proj.weight", 1e8f);
  const Outcome o = run(command("out").set("max_steps", "1"));
  EXPECT_EQ(o.exit_code, 0) << o.err;
  const auto step = read_metrics(temporary_ / "out").at(0);
  EXPECT_TRUE(step.at("loss").is_number());
  ASSERT_EQ(step.at("skipped"), true);
  EXPECT_EQ(step.at("skipped_origin"), "the gradients");
  EXPECT_EQ(step.at("skipped_tensor"), "model.layers.1.mlp.gate_proj.weight") << "layer 0's are not finite either";
}

TEST_F(Diverging, ActivationsAreNamedByLayer) {
  fill_tensor(weights(), "model.layers.1.mlp.down_proj.weight", 3e38f);
  const Outcome o = run(command("out").set("max_steps", "1"));
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(read_metrics(temporary_ / "out").at(0).at("skipped_origin"), "layer 1, the output of its MLP");
}

// An update that leaves a weight not finite which no batch uses: losses and gradients stay finite, and a save finds it.
TEST_F(Diverging, WeightsThatAreNotFiniteAreNotSaved) {
  constexpr std::size_t unused = 5 * 32 + 7;  // of the embedding's row 5
  write_file(temporary_ / "data.jsonl", "{\"input_ids\":[28,122,70,146,133,36,18,14]}\n");
  fill_tensor(weights(), "model.embed_tokens.weight", 3.3e38f, unused);
  TrainCommand c = command("out").set("data", (temporary_ / "data.jsonl").string()).set("max_steps", "1");
  c.set("lr", "1").set("weight_decay", "4");
  const Outcome o = run(c);
  EXPECT_EQ(o.exit_code, 1) << o.err;
  EXPECT_TRUE(says(o.err, {"superoffload: ", "was not written", "'model.embed_tokens.weight'", "not finite"})) << o.err;
  EXPECT_FALSE(has("out", "checkpoint-1"));
  EXPECT_FALSE(has("out", "model.safetensors"));
}

TEST_F(Diverging, ModelsThatAreNotFiniteAreNotTrained) {
  fill_tensor(weights(), "model.layers.1.self_attn.o_proj.weight", nan, 100);
  const Outcome o = run(command("out").set("max_steps", "1"));
  expect_refusal(o, {"model.safetensors", "'model.layers.1.self_attn.o_proj.weight'", "not finite", "100"});
}

TEST_F(Diverging, EvaluationSaysSoAndFails) {
  fill_tensor(weights(), "model.layers.1.self_attn.o_proj.weight", nan, 100);
  std::vector<std::string> words{test::binary(), "eval", "--model", model_.string(), "--data"};
  words.insert(words.end(), {(fixture_ / "data.jsonl").string(), "--max_length", "48", "--json", "--cache_dir"});
  words.insert(words.end(), {(temporary_ / "cache").string(), "--device", on_gpu() ? "cuda" : "cpu"});
  const Outcome o = test::run(words, temporary_.path());
  EXPECT_EQ(o.exit_code, 1) << o.err;
  EXPECT_TRUE(says(o.err, {"warning: ", "'model.layers.1.self_attn.o_proj.weight'", "not finite"})) << o.err;
  const auto result = nlohmann::json::parse(o.out);
  EXPECT_TRUE(result.at("loss").is_null());
  EXPECT_TRUE(result.at("perplexity").is_null());
}

TEST_F(Diverging, GeneratingSaysSoAndFails) {
  write_file(temporary_ / "config.json", R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
    "vocab_size": 4096, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 16, "intermediate_size": 48, "hidden_act": "silu", "max_position_embeddings": 64,
    "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "tie_word_embeddings": true, "torch_dtype": "float32"})");
  const std::string with_tokenizer = (temporary_ / "with_tokenizer").string();
  ASSERT_EQ(test::run({test::binary(), "init", "--config", (temporary_ / "config.json").string(), "--tokenizer",
                       test::source_tree() + "/assets/tokenizer", "--output_dir", with_tokenizer},
                      temporary_.path())
                .exit_code,
            0);
  fill_tensor(with_tokenizer + "/model.safetensors", "model.layers.1.self_attn.o_proj.weight", nan, 100);
  const Outcome o = test::run({test::binary(), "generate", "--model", with_tokenizer, "--prompt", "Add.",
                               "--max_new_tokens", "2", "--device", on_gpu() ? "cuda" : "cpu"},
                              temporary_.path());
  EXPECT_EQ(o.exit_code, 1) << o.err;
  EXPECT_EQ(lines_of(o.err).back(),
            "superoffload: the model's logits are not numbers; its weights are damaged or training diverged");
}

}  // namespace
}  // namespace so::test
