// The directories that publishers ship, through every command that reads a model.
#include <gtest/gtest.h>

#include <cmath>

#include "support/published_models.h"
#include "support/refusal.h"

namespace so::test {
namespace {

// Records as pandas and Python write them: what no key means may hold any number.
std::string records() {
  std::string all;
  for (int i = 0; i < 4; ++i)
    all += "{\"instruction\": \"Add " + std::to_string(i) + ".\", \"input\": \"\", \"output\": \"three\", \"score\": " +
           (i % 2 == 0 ? "NaN" : "-Infinity") + ", \"id\": " + no_limit + "}\n";
  return all;
}

class Published : public testing::TestWithParam<PublishedModel> {
 protected:
  Outcome superoffload(std::vector<std::string> words) const {
    words.insert(words.begin(), SO_BINARY);
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
    write_json(temporary_ / "model" / "config.json", config_of(GetParam()));
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
  expect_done({"train", "--model", path("model"), "--data", path("data.jsonl"), "--output_dir", path("out"),
               "--max_steps", "1", "--batch_size", "2", "--max_length", "256", "--lr", "1e-4", "--device", "cpu",
               "--cpu_threads", "2", "--cache_dir", path("cache")});
  expect_done({"eval", "--model", path("out"), "--data", path("data.jsonl"), "--max_length", "256", "--json", "--device",
               "cpu", "--cpu_threads", "2", "--cache_dir", path("cache")});
  if (last_.exit_code == 0) {
    EXPECT_TRUE(std::isfinite(nlohmann::json::parse(last_.out)["loss"].get<double>())) << last_.out;
  }
  expect_done({"generate", "--model", path("out"), "--prompt", "Add 1.", "--max_new_tokens", "2", "--device", "cpu",
               "--cpu_threads", "2"});

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

// Mixtral and the first Mistral models: BPE of SentencePiece, which is not read.
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

INSTANTIATE_TEST_SUITE_P(Families, Published, testing::ValuesIn(published_models()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace so::test
