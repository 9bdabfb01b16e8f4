// The directories that publishers ship, through every command that reads a model.
#include "support/published_models.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/label.h"
#include "support/paths.h"
#include "support/refusal.h"

namespace so::test {
namespace {

// Records as pandas and Python write them: what no key means may hold any number.
std::string records() {
  std::string all;
  for (int i = 0; i < 4; ++i)
    all += "{\"instruction\": \"Add " + std::to_string(i) +
           ".\", \"input\": \"\", \"output\": \"three\", \"score\": " + (i % 2 == 0 ? "NaN" : "-Infinity") +
           ", \"id\": " + no_limit + "}\n";
  return all;
}

class Published : public testing::TestWithParam<PublishedModel> {
 protected:
  Outcome superoffload(std::vector<std::string> words) const {
    words.insert(words.begin(), test::binary());
    return run(words, temporary_.path());
  }
  void expect_done(const std::vector<std::string>& words) {
    last_ = superoffload(words);
    EXPECT_EQ(last_.exit_code, 0) << words.front() << ": " << last_.err;
  }
  std::string path(const std::string& name) const { return (temporary_ / name).string(); }

  void make() {
    write_small_files(GetParam(), temporary_ / "small");
    write_json(temporary_ / "config.json", config_of(GetParam()));
    write_file(temporary_ / "data.jsonl", records());
    expect_done({"init", "--config", path("config.json"), "--tokenizer", path("small"), "--output_dir", path("model")});
    write_small_files(GetParam(), temporary_ / "model");
    // init says which number format it wrote; publishers' own text is to be read.
    const std::string config = config_of(GetParam()).dump(2);
    write_file(temporary_ / "model" / "config.json", "{\n  \"time_step_limit\": [0.0, Infinity]," + config.substr(1));
  }

  TemporaryDirectory temporary_;
  Outcome last_;
};

TEST_P(Published, RunsThroughEveryCommand) {
  ASSERT_NO_FATAL_FAILURE(make());
  expect_done({"plan", "--model", path("model"), "--max_length", "256"});
  expect_done({"tokenize", "--model", path("model"), "--text", "Add 1.", "--json"});
  const auto ids = nlohmann::json::parse(last_.out)["ids"].get<std::vector<int>>();
  EXPECT_FALSE(ids.empty());
  expect_done({"train",
               "--model",
               path("model"),
               "--data",
               path("data.jsonl"),
               "--output_dir",
               path("out"),
               "--max_steps",
               "1",
               "--batch_size",
               "2",
               "--max_length",
               "256",
               "--lr",
               "1e-4",
               "--device",
               "cpu",
               "--cpu_threads",
               "2",
               "--cache_dir",
               path("cache")});
  expect_done({"eval", "--model", path("out"), "--data", path("data.jsonl"), "--max_length", "256", "--json",
               "--device", "cpu", "--cpu_threads", "2", "--cache_dir", path("cache")});
  if (last_.exit_code == 0) {
    EXPECT_TRUE(std::isfinite(nlohmann::json::parse(last_.out)["loss"].get<double>())) << last_.out;
  }
  expect_done({"generate", "--model", path("out"), "--prompt", "Add 1.", "--max_new_tokens", "2", "--device", "cpu",
               "--cpu_threads", "2"});

  EXPECT_NE(read_file(temporary_ / "out" / "config.json").find("Infinity"), std::string::npos);
  // The trained model has the small files as they were, and nothing of what lay beside them.
  std::vector<std::string> copied = GetParam().copied;
  copied.insert(copied.end(), {"tokenizer.json", "tokenizer_config.json"});
  if (!GetParam().special_tokens_map.is_null()) copied.push_back("special_tokens_map.json");
  if (!GetParam().generation.is_null()) copied.push_back("generation_config.json");
  if (GetParam().chat_template == ChatTemplate::file) copied.push_back("chat_template.jinja");
  for (const std::string& name : copied) {
    ASSERT_TRUE(std::filesystem::exists(temporary_ / "out" / name)) << name;
    EXPECT_EQ(read_file(temporary_ / "out" / name), read_file(temporary_ / "model" / name)) << name;
  }
  for (const std::string& name : GetParam().ignored)
    EXPECT_FALSE(std::filesystem::exists(temporary_ / "out" / name)) << name;
}

// A second run replaces folders, too.
TEST(PublishedAgain, FoldersAreReplaced) {
  TemporaryDirectory temporary;
  const auto fixture = model_fixture("qwen3-tied");
  std::filesystem::copy(fixture / "model", temporary / "model", std::filesystem::copy_options::recursive);
  const std::string name = "additional_chat_templates/tool_use.jinja";
  std::filesystem::create_directories(temporary / "model/additional_chat_templates");
  TrainCommand command(temporary / "model", fixture / "data.jsonl", temporary / "out");
  command.set("lr", "1e-3").set("batch_size", "2").set("max_length", "48").set("max_steps", "1");
  for (const char* text : {"first", "second"}) {
    write_file(temporary / "model" / name, text);
    const Outcome o = run(command.words(), temporary.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    EXPECT_EQ(read_file(temporary / "out" / name), text);
    command.flag("overwrite_output_dir");
  }
}

// GPT-OSS as OpenAI publishes it: experts in MXFP4 under the older names of the rotation.
TEST(PublishedMxfp4, GptOssTrainsOnTokenIds) {
  TemporaryDirectory temporary;
  const auto fixture = model_fixture("gpt-oss-mxfp4");
  std::filesystem::copy(fixture / "mxfp4", temporary / "model", std::filesystem::copy_options::recursive);
  auto config = read_json(temporary / "model/config.json");
  config["rope_scaling"] = config["rope_parameters"];
  config["rope_theta"] = config["rope_scaling"]["rope_theta"];
  config["rope_scaling"].erase("rope_theta");
  config.erase("rope_parameters");
  config["torch_dtype"] = "bfloat16";
  config.erase("dtype");
  config["experts_per_token"] = config["num_experts_per_tok"];
  config["initial_context_length"] = 4096;
  config["quantization_config"] = {
      {"modules_to_not_convert",
       {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"}},
      {"quant_method", "mxfp4"}};
  std::filesystem::permissions(temporary / "model/config.json", std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  write_json(temporary / "model/config.json", config);
  write_json(temporary / "model/generation_config.json", {{"eos_token_id", {200002, 199999, 200012}}});
  TrainCommand command(temporary / "model", fixture / "data.jsonl", temporary / "out");
  command.set("lr", "1e-3").set("batch_size", "2").set("max_length", "48").set("max_steps", "1");
  const Outcome o = run(command.words(), temporary.path());
  EXPECT_EQ(o.exit_code, 0) << o.err;
  const auto written = read_json(temporary / "out/config.json");
  EXPECT_FALSE(written.contains("quantization_config"));
  EXPECT_EQ(written["rope_scaling"], config["rope_scaling"]);
  EXPECT_EQ(read_file(temporary / "out/generation_config.json"), read_file(temporary / "model/generation_config.json"));
}

// A clone without Git LFS has pointers in place of the large files.
class ClonedWithoutLfs : public RefusalTest {
 protected:
  void point(const std::string& name) const {
    write_file(model() / name,
               "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f"
               "32b1258daaa5e2ca24d17e2393\nsize 12345\n");
  }
};

TEST_F(ClonedWithoutLfs, WeightsAreNamedWithTheFix) {
  point("model.safetensors");
  expect_refused({"model.safetensors", "Git LFS", "git lfs pull"});
}
TEST_F(ClonedWithoutLfs, AShardIsNamedWithTheFix) {
  std::filesystem::remove(weights());
  write_json(model() / "model.safetensors.index.json", {{"weight_map", {{"a", "model-00001-of-00001.safetensors"}}}});
  point("model-00001-of-00001.safetensors");
  expect_refused({"model-00001-of-00001.safetensors", "git lfs pull"});
}
TEST_F(ClonedWithoutLfs, TheTokenizerIsNamedWithTheFix) {
  point("tokenizer.json");
  write_file(data(), "{\"text\": \"Add.\"}\n");
  expect_refused({"tokenizer.json", "git lfs pull"});
}

// Clones without tokenizer.json, or with a damaged one, beside SentencePiece's own file, which is not read.
class SentencePieceModel : public RefusalTest {
 protected:
  SentencePieceModel() { write_file(model() / "tokenizer.model", std::string("\n\x0e\n\x05<unk>\0", 10)); }
  void give_text() const { write_file(data(), "{\"text\": \"Add.\"}\n"); }
};

TEST_F(SentencePieceModel, TokenIdsTrainAndTheFilesAreKept) {
  for (const char* json : {"", R"({"model": {"type": "BPE", "byte_fallback": true, "vocab": {"<0x0A>": 13}}})"}) {
    if (*json != 0) write_file(model() / "tokenizer.json", json);
    const auto out = temporary_ / (*json != 0 ? "with-json" : "without");
    const Outcome o = run(command().set("output_dir", out.string()).words(), temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    EXPECT_TRUE(std::filesystem::exists(out / "tokenizer.model"));
  }
}
TEST_F(SentencePieceModel, TextIsRefusedWithTheFix) {
  give_text();
  expect_refused({"SentencePiece", "tokenizer.model", "not read", "input_ids"});
}
TEST_F(SentencePieceModel, TextIsRefusedBesideItsTokenizerJson) {
  give_text();
  write_file(model() / "tokenizer.json",
             R"({"model": {"type": "BPE", "byte_fallback": true, "vocab": {"<unk>": 0, "<0x0A>": 13}, "merges": []},
                 "added_tokens": []})");
  expect_refused({"tokenizer.json", "SentencePiece", "input_ids"});
}

SO_LABEL(sweep, each_of("Families/Published.*/", {"Glm4", "Granite33", "Llama31", "MistralNemo", "Olmo2", "Olmo3",
                                                  "Phi4", "Phi4Mini", "Qwen25", "Qwen3", "SeedOss", "SmolLM3"}));
INSTANTIATE_TEST_SUITE_P(Families, Published, testing::ValuesIn(published_models()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace so::test
