// superoffload eval, and what train's evaluation has in common with it: whose loss it is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/files.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/speaking_model.h"
#include "support/training_run.h"

namespace so::test {
namespace {

using nlohmann::json;

class EvalTest : public testing::Test {
 protected:
  // A copy of a fixture's model, with other keys in its config.json; null removes one.
  std::filesystem::path model_with(const std::string& fixture, const json& keys) const {
    const std::filesystem::path model = temporary_ / "model";
    std::filesystem::remove_all(model);
    std::filesystem::copy(model_fixture(fixture) / "model", model, std::filesystem::copy_options::recursive);
    json config = read_json(model / "config.json");
    for (const auto& [key, value] : keys.items())
      if (value.is_null())
        config.erase(key);
      else
        config[key] = value;
    write_file(model / "config.json", config.dump());
    return model;
  }
  json evaluate(const std::filesystem::path& model, const std::filesystem::path& data,
                const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{
        binary(),   "eval", "--model",     model.string(),      "--data", data.string(), "--json",
        "--device", "cpu",  "--cache_dir", temporary_ / "cache"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome o = run(words, temporary_.path());
    if (o.exit_code != 0) throw std::runtime_error(o.err);
    return json::parse(o.out);
  }

  TemporaryDirectory temporary_;
};

// LongRoPE has other factors for long documents. Each document's are its own, whatever it is batched with; what
// PyTorch's are, the fixture holds of training.
TEST_F(EvalTest, ADocumentsLossDoesNotDependOnTheOthers) {
  const std::filesystem::path model = model_fixture("phi3-long") / "model";
  const auto original = read_json(model / "config.json").at("original_max_position_embeddings").get<std::size_t>();
  std::string all;
  double sum = 0;
  std::int64_t trained = 0, longer = 0, shorter = 0;
  for (const std::string& line : lines_of(read_file(model_fixture("phi3-long") / "data.jsonl"))) {
    const std::size_t tokens = json::parse(line).at("input_ids").size();
    if (tokens > original ? longer++ >= 3 : shorter++ >= 3) continue;
    all += line + "\n";
    write_file(temporary_ / "one.jsonl", line + "\n");
    const json one = evaluate(model, temporary_ / "one.jsonl");
    sum += one.at("loss").get<double>() * one.at("trained_tokens").get<double>();
    trained += one.at("trained_tokens").get<std::int64_t>();
  }
  ASSERT_GT(std::min(longer, shorter), 2);
  write_file(temporary_ / "all.jsonl", all);
  for (const char* batch : {"1", "6"}) {
    const json together = evaluate(model, temporary_ / "all.jsonl", {"--batch_size", batch});
    EXPECT_EQ(together.at("trained_tokens"), trained);
    // Products of other shapes may add in another order.
    EXPECT_NEAR(together.at("loss").get<double>() * static_cast<double>(trained), sum, 1e-6 * sum) << batch;
  }
}

TEST_F(EvalTest, PerplexityIsWithoutTheRoutersLoss) {
  const std::filesystem::path data = model_fixture("qwen3-moe-balance") / "data.jsonl";
  const json keys{{"output_router_logits", true}, {"router_aux_loss_coef", 5}};
  const json with = evaluate(model_with("qwen3-moe-balance", keys), data),
             without = evaluate(model_with("qwen3-moe-balance", {{"output_router_logits", false}}), data);
  EXPECT_EQ(with, without);
  EXPECT_EQ(with.at("perplexity"), std::exp(with.at("loss").get<double>()));
  // Train's evaluation before its first step is of the same weights.
  TrainCommand train(model_with("qwen3-moe-balance", keys), data, temporary_ / "out");
  train.set("eval_data", data.string()).set("max_steps", "1").set("max_length", "48").set("batch_size", "2");
  const Outcome o = run(train.words(), temporary_.path());
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const auto metrics = read_metrics(temporary_ / "out");
  ASSERT_TRUE(metrics.at(0).contains("eval_loss"));
  EXPECT_NEAR(metrics[0].at("eval_loss").get<double>(), with.at("loss").get<double>(), 1e-6);
  EXPECT_GT(metrics.at(1).at("loss").get<double>(), with.at("loss").get<double>() + 4) << "a step's has it";
}

TEST_F(EvalTest, WithoutADtypeTheFilesDtypeCounts) {
  const std::filesystem::path data = model_fixture("qwen3-bf16-v4") / "data.jsonl";
  const std::filesystem::path bf16 = model_with("qwen3-bf16-v4", {{"torch_dtype", nullptr}});
  const double as_stored = evaluate(bf16, data).at("loss");
  EXPECT_EQ(as_stored, evaluate(bf16, data, {"--dtype", "bf16"}).at("loss"));
  EXPECT_NE(as_stored, evaluate(bf16, data, {"--dtype", "fp32"}).at("loss"));
  // What train writes is that too.
  TrainCommand train(bf16, data, temporary_ / "out");
  const Outcome o =
      run(train.without("dtype").set("max_steps", "1").set("max_length", "48").words(), temporary_.path());
  ASSERT_EQ(o.exit_code, 0) << o.err;
  for (const auto& [name, tensor] : read_model_weights(temporary_ / "out")) EXPECT_EQ(tensor.dtype, "BF16") << name;
  const std::filesystem::path fp32 = model_with("qwen3-tied", {{"dtype", nullptr}});
  const std::filesystem::path words = model_fixture("qwen3-tied") / "data.jsonl";
  EXPECT_EQ(evaluate(fp32, words).at("loss"), evaluate(fp32, words, {"--dtype", "fp32"}).at("loss"));
}

// However much room a text has, its tokens are the same.
TEST_F(EvalTest, ATextDoesNotDependOnHowLongItMayBecome) {
  json config = read_json(model_fixture("phi3-long") / "model" / "config.json");
  config["vocab_size"] = 2005;  // of the tokenizer below
  config["initializer_range"] = 0.3;
  write_file(temporary_ / "config.json", config.dump());
  const std::filesystem::path model = temporary_ / "speaking";
  const Outcome made = run({binary(), "init", "--config", temporary_ / "config.json", "--tokenizer",
                            fixtures() + "/tokenizer/qwen3", "--output_dir", model.string()},
                           temporary_.path());
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const auto ids = [&](const std::string& tokens) {
    const Outcome o = run({binary(), "generate", "--model", model.string(), "--prompt", "Add two numbers.",
                           "--max_new_tokens", tokens, "--stop_at_eos", "false", "--json", "--device", "cpu"},
                          temporary_.path());
    if (o.exit_code != 0) throw std::runtime_error(o.err);
    return json::parse(o.out).at("ids").get<std::vector<int>>();
  };
  const std::vector<int> few = ids("8"), many = ids("40");
  ASSERT_EQ(many.size(), 40u);
  EXPECT_EQ(few, std::vector<int>(many.begin(), many.begin() + 8));
}

}  // namespace
}  // namespace so::test
