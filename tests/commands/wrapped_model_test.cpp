// The program on text models inside models of text and more: it does what it does with the text model alone, and the
// other parts come out as they went in.
#include <gtest/gtest.h>

#include <string_view>

#include "support/files.h"
#include "support/mpirun.h"
#include "support/process.h"
#include "support/raw_tensors.h"
#include "support/refusal.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view vision = "model.vision_tower.weight", heads = "mtp.norm.weight";

class WrappedRun : public testing::Test {
 protected:
  // A Gemma 3 that speaks, by itself: of random weights, with a tokenizer.
  void SetUp() override {
    json config = read_json(model_fixture("gemma3-v4") / "model" / "config.json");
    config["vocab_size"] = 2005;  // of the tokenizer
    write_file(temporary_ / "config.json", config.dump());
    result_of({"init", "--config", (temporary_ / "config.json").string(), "--tokenizer",
               test::fixtures() + "/tokenizer/qwen3", "--output_dir", text_.string()});
    make_wrapped();
    std::string lines;
    for (const char* line : {"one two three", "four five six", "seven eight", "nine ten eleven twelve"})
      lines += json{{"text", line}}.dump() + "\n";
    write_file(data_, lines);
  }
  // The same inside a model of images and text, with one tensor of a vision tower and one of extra heads.
  void make_wrapped() {
    fs::create_directories(wrapped_);
    for (const auto& entry : fs::directory_iterator(text_))
      if (entry.path().filename().string().starts_with("token"))
        fs::copy(entry.path(), wrapped_ / entry.path().filename());
    write_file(wrapped_ / "preprocessor_config.json", "{\"size\": 8}");
    json text = read_json(text_ / "config.json");
    text.erase("architectures");
    write_file(wrapped_ / "config.json", json{{"architectures", {"Gemma3ForConditionalGeneration"}},
                                              {"model_type", "gemma3"},
                                              {"dtype", text.at("torch_dtype")},
                                              {"text_config", text},
                                              {"vision_config", {{"hidden_size", 3}}}}
                                             .dump(2));
    std::vector<RawTensor> tensors{{std::string(vision), "F32", {3}, std::string(12, '\7')},
                                   {std::string(heads), "BF16", {2}, std::string(4, '\7')}};
    for (auto [name, tensor] : raw_tensors(text_)) {
      tensor.name = stored(name);
      tensors.push_back(tensor);
    }
    write_safetensors(wrapped_ / "model.safetensors", tensors);
  }
  static std::string stored(const std::string& parameter) {
    return "model.language_model." + parameter.substr(std::string_view("model.").size());
  }
  Outcome outcome(std::vector<std::string> words) const {
    words.insert(words.begin(), test::binary());
    return run(words, temporary_.path());
  }
  std::string result_of(const std::vector<std::string>& words) const {
    const Outcome o = outcome(words);
    if (o.exit_code != 0) throw std::runtime_error(o.err);
    return o.out;
  }
  TrainCommand train(const fs::path& model, const std::string& output) const {
    TrainCommand c(model, data_, temporary_ / output);
    c.set("max_steps", "4").set("batch_size", "1").set("lr", "1e-2").set("warmup", "0").set("max_length", "32");
    return c.set("dtype", "bf16").set("cache_dir", (temporary_ / "cache").string());
  }
  std::string finish(const TrainCommand& c) const {
    const Outcome o = run(c.words(), temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return o.err;
  }
  json generated(const fs::path& model) const {
    return json::parse(result_of({"generate", "--model", model.string(), "--prompt", "one two", "--max_new_tokens", "9",
                                  "--stop_at_eos", "false", "--json", "--device", "cpu"}))
        .at("ids");
  }
  // The output is the wrapped model with this text model, and with the other parts as they were.
  void expect_output(const std::string& output, const RawTensors& text) const {
    const RawTensors got = raw_tensors(temporary_ / output), source = raw_tensors(wrapped_);
    ASSERT_EQ(got.size(), source.size()) << output;
    for (const std::string_view part : {vision, heads})
      EXPECT_TRUE(got.at(std::string(part)).bytes == source.at(std::string(part)).bytes) << part;
    for (const auto& [name, tensor] : text)
      EXPECT_TRUE(got.at(stored(name)).bytes == tensor.bytes) << output << ": " << name;
    const json config = read_json(temporary_ / output / "config.json");
    json expected = read_json(wrapped_ / "config.json");
    expected["dtype"] = expected["text_config"]["torch_dtype"] = "bfloat16";
    EXPECT_EQ(config, expected);
    EXPECT_EQ(read_file(temporary_ / output / "preprocessor_config.json"),
              read_file(wrapped_ / "preprocessor_config.json"));
  }

  TemporaryDirectory temporary_;
  const fs::path text_ = temporary_ / "text", wrapped_ = temporary_ / "wrapped", data_ = temporary_ / "data.jsonl";
};

TEST_F(WrappedRun, CommandsFindTheTextModel) {
  EXPECT_EQ(generated(wrapped_), generated(text_));
  const auto loss = [&](const fs::path& model) {
    return json::parse(result_of({"eval", "--model", model.string(), "--data", data_.string(), "--json", "--device",
                                  "cpu", "--cache_dir", (temporary_ / "cache").string()}))
        .at("loss");
  };
  EXPECT_EQ(loss(wrapped_), loss(text_));
  const std::string plan = result_of({"plan", "--model", wrapped_.string(), "--hardware", "h100-sxm"});
  EXPECT_NE(plan.find("Gemma3ForCausalLM"), std::string::npos) << plan;
  expect_refusal(outcome({"init", "--config", wrapped_.string(), "--output_dir", (temporary_ / "random").string()}),
                 {"Gemma3ForConditionalGeneration holds more than a text model", "Gemma3ForCausalLM"});
}

TEST_F(WrappedRun, TrainsAsTheTextModelAloneAndKeepsTheRest) {
  finish(train(text_, "alone"));
  const std::string log = finish(train(wrapped_, "out").set("save_steps", "2"));
  EXPECT_NE(log.find("2 of 43 tensors"), std::string::npos) << log;
  EXPECT_NE(log.find("'mtp.norm.weight' and the like"), std::string::npos) << log;
  EXPECT_EQ(log.find("mtp", log.find("mtp") + 1), std::string::npos) << "said once:\n" << log;
  const RawTensors alone = raw_tensors(temporary_ / "alone");
  expect_output("out", alone);
  result_of({"verify", (temporary_ / "out").string()});
  EXPECT_EQ(generated(temporary_ / "out"), generated(temporary_ / "alone"));

  // From a checkpoint it goes on to the same; the parts that are not trained come from --model, which must be there.
  const fs::path checkpoint = temporary_ / "out" / "checkpoint-2";
  EXPECT_TRUE(raw_tensors(checkpoint).contains(std::string(vision)));
  finish(train(wrapped_, "out").set("save_steps", "2").set("resume", checkpoint.string()));
  expect_output("out", alone);
  fs::rename(wrapped_, temporary_ / "elsewhere");
  expect_refusal(
      run(train(wrapped_, "out").set("save_steps", "2").set("resume", checkpoint.string()).words(), temporary_.path()),
      {wrapped_.string(), "no such directory"});
  fs::rename(temporary_ / "elsewhere", wrapped_);
}

TEST_F(WrappedRun, ParametersAreFrozenByTheirNamesInTheFiles) {
  finish(train(text_, "alone").set("freeze", "model.layers.0.*,lm_head.weight"));
  finish(train(wrapped_, "out").set("freeze", "model.language_model.layers.0.*,model.language_model.embed_tokens.*"));
  expect_output("out", raw_tensors(temporary_ / "alone"));
}

TEST_F(WrappedRun, RanksWriteTheSameModel) {
  if (const std::string reason = why_no_ranks(); !reason.empty()) GTEST_SKIP() << reason;
  finish(train(text_, "alone").set("gpus", "2"));
  finish(train(wrapped_, "out").set("gpus", "2"));
  expect_output("out", raw_tensors(temporary_ / "alone"));
}

TEST_F(WrappedRun, RecordsWithImagesAreRefusedByNumber) {
  write_file(data_, R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})"
                    "\n"
                    R"({"messages":[{"role":"user","content":[{"type":"image","image":"a.png"}]}]})"
                    "\n");
  write_file(wrapped_ / "chat_template.jinja", "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}");
  expect_refusal(run(train(wrapped_, "out").words(), temporary_.path()),
                 {"data.jsonl:2", "has a part of type \"image\"; only text is trained on"});
}

}  // namespace
}  // namespace so::test
