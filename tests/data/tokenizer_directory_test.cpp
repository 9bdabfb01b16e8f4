// The files beside tokenizer.json decide what they should, and errors in them are refused with file and key.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/small_tokenizer.h"
#include "data/tokenizer/tokenizer.h"

namespace so {
namespace {

using test::Json;
using test::message_of;
using test::small_tokenizer;
using Ids = std::vector<std::int32_t>;

class TokenizerDirectory : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / ("so-tokenizer-test-" + std::to_string(getpid()));
    std::filesystem::create_directories(directory_);
    write("tokenizer.json", small_tokenizer());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void write(const char* name, const Json& json) { std::ofstream(directory_ / name) << json.dump(); }
  Tokenizer load() { return Tokenizer::load(directory_); }

  std::filesystem::path directory_;
};

TEST_F(TokenizerDirectory, NamesTheMissingFile) {
  std::filesystem::remove(directory_ / "tokenizer.json");
  EXPECT_NE(message_of([&] { load(); }).find("has no tokenizer.json"), std::string::npos);
}

TEST_F(TokenizerDirectory, TheFirstFileWithTheKeyDecides) {
  write("generation_config.json", {{"bos_token_id", 3}, {"eos_token_id", {256, 257}}, {"pad_token_id", 4}});
  EXPECT_EQ(load().bos_id(), 3);
  EXPECT_EQ(load().eos_id(), 256);
  EXPECT_EQ(load().pad_id(), 4);
  write("generation_config.json", {{"bos_token_id", 3}, {"eos_token_id", {256, 257}}, {"pad_token_id", -1}});
  EXPECT_EQ(load().pad_id(), std::nullopt);
  write("generation_config.json", {{"bos_token_id", 3}, {"eos_token_id", {256, 257}}, {"pad_token_id", 4}});
  write("special_tokens_map.json", {{"eos_token", {{"content", "<end>"}}}});
  EXPECT_EQ(load().eos_id(), 257);
  write("tokenizer_config.json", {{"bos_token", nullptr}, {"eos_token", "he"}});
  EXPECT_EQ(load().bos_id(), std::nullopt);
  EXPECT_EQ(load().eos_id(), 256);
  EXPECT_EQ(load().pad_id(), 4);
}

TEST_F(TokenizerDirectory, GenerationEndsAtEachOfTheListedIds) {
  EXPECT_FALSE(load().ends_generation(256));
  write("config.json", {{"eos_token_id", {3, nullptr, "x", 1e30, -1}}});
  EXPECT_TRUE(load().ends_generation(3));
  write("generation_config.json", {{"eos_token_id", {256, 257}}});
  write("tokenizer_config.json", {{"eos_token", "<end>"}});
  EXPECT_EQ(load().eos_id(), 257);
  EXPECT_TRUE(load().ends_generation(256));
  EXPECT_TRUE(load().ends_generation(257));
  EXPECT_FALSE(load().ends_generation(3));
  write("tokenizer_config.json", {{"eos_token", "he"}});
  write("generation_config.json", {{"eos_token_id", 4}});
  EXPECT_TRUE(load().ends_generation(256));
  EXPECT_TRUE(load().ends_generation(4));
}

// The library reads such files, and publishers ship them.
TEST_F(TokenizerDirectory, KeysThatMayBeAbsent) {
  const Ids expected = load().encode("hehe", true);
  for (const char* key : {"version", "truncation", "padding", "normalizer", "post_processor", "decoder"}) {
    Json json = small_tokenizer();
    json.erase(key);
    write("tokenizer.json", json);
    EXPECT_EQ(load().encode("hehe", true), expected) << key;
    json[key] = nullptr;
    if (std::string(key) == "version") continue;
    write("tokenizer.json", json);
    EXPECT_EQ(load().encode("hehe", true), expected) << key;
    EXPECT_EQ(load().decode(expected, false), "hehe") << key;
  }
  Json json = small_tokenizer();
  json.erase("added_tokens");
  write("tokenizer.json", json);
  EXPECT_EQ(load().encode("hehe", true), expected);
}

TEST_F(TokenizerDirectory, AnyNumberOfPythonsAndKeysGivenTwice) {
  std::ofstream(directory_ / "tokenizer_config.json")
      << R"({"model_max_length": 1000000000000000019884624838656, "a": [NaN, -Infinity, 1e999, -99999999999999999999],
             "eos_token": "absent", "b": {"model_max_length": Infinity}, "eos_token": "<end>"})";
  EXPECT_EQ(load().eos_id(), 257);
}

TEST_F(TokenizerDirectory, HalfOfASurrogatePairStopsNobodyWhereItIsNotUsed) {
  std::ofstream(directory_ / "tokenizer_config.json") << R"({"note": "cut \ud83d", "\udc00": 1, "eos_token": "<end>"})";
  EXPECT_EQ(load().eos_id(), 257);
  std::ofstream(directory_ / "tokenizer_config.json") << R"({"eos_token": "<end>\ud83d"})";
  EXPECT_NE(message_of([&] { load(); }).find("eos_token holds half of a surrogate pair"), std::string::npos);
}

TEST_F(TokenizerDirectory, BosAndPaddingThatNoTokenSpellsAreNone) {
  write("tokenizer_config.json", {{"bos_token", "<s>"}, {"pad_token", {{"content", "[PAD]"}}}, {"eos_token", "<end>"}});
  EXPECT_EQ(load().bos_id(), std::nullopt);
  EXPECT_EQ(load().pad_id(), std::nullopt);
  EXPECT_EQ(load().eos_id(), 257);
}

TEST_F(TokenizerDirectory, ADamagedFileIsNamedWithItsLine) {
  std::ofstream(directory_ / "tokenizer_config.json") << "{\n\"a\": 1,\n\"b\": oops}";
  EXPECT_NE(message_of([&] { load(); }).find("tokenizer_config.json:3: not valid JSON: "), std::string::npos)
      << message_of([&] { load(); });
}

TEST_F(TokenizerDirectory, ThePostProcessorAloneDecidesWhatIsAdded) {
  write("tokenizer_config.json",
        {{"bos_token", "<end>"}, {"eos_token", "he"}, {"add_bos_token", true}, {"add_eos_token", true}});
  EXPECT_EQ(load().encode("a", true), Ids{'a'});
}

// Which classes heed the key was seen with transformers 5.24; tokenizer.json is the same in all cases.
TEST_F(TokenizerDirectory, ABlankBeforeTextsIsThatOfTransformersOrRefused) {
  const auto refusal = [&](const Json& config) {
    write("tokenizer_config.json", config);
    return message_of([&] { load(); });
  };
  for (const char* name : {"Qwen2Tokenizer", "Qwen2TokenizerFast", "GPT2Tokenizer"}) {
    EXPECT_NE(refusal({{"tokenizer_class", name}, {"add_prefix_space", true}})
                  .find("tokenizer_config.json: \"add_prefix_space\" is true, and tokenizer.json does not put a blank"),
              std::string::npos);
    EXPECT_EQ(refusal({{"tokenizer_class", name}, {"add_prefix_space", false}}), "no error");
    EXPECT_EQ(refusal({{"tokenizer_class", name}, {"add_prefix_space", nullptr}}), "no error");
  }
  for (const char* name : {"PreTrainedTokenizerFast", "TokenizersBackend", "LlamaTokenizerFast", "GemmaTokenizer"})
    EXPECT_EQ(refusal({{"tokenizer_class", name}, {"add_prefix_space", true}}), "no error") << name;
  EXPECT_EQ(refusal({{"add_prefix_space", true}}), "no error");
  EXPECT_NE(refusal({{"tokenizer_class", "GPT2Tokenizer"}, {"add_prefix_space", "yes"}}).find("must be true or false"),
            std::string::npos);
}

TEST_F(TokenizerDirectory, SpecialTokensAreTextWhereTheConfigurationSaysSo) {
  write("tokenizer_config.json", Json::object());
  const Tokenizer parsing = load();
  write("tokenizer_config.json", {{"split_special_tokens", true}});
  const Tokenizer splitting = load();
  EXPECT_EQ(splitting.encode("a<end>", false), parsing.encode("a<end>", false, SpecialTokens::as_text));
  EXPECT_NE(splitting.encode("a<end>", false), parsing.encode("a<end>", false));
  EXPECT_NE(splitting.fingerprint(), parsing.fingerprint());
  write("tokenizer_config.json", {{"split_special_tokens", false}});
  EXPECT_EQ(load().fingerprint(), parsing.fingerprint());
}

TEST_F(TokenizerDirectory, RefusesTokensThatTokenizerJsonDoesNotHave) {
  write("tokenizer_config.json", {{"eos_token", "<stop>"}});
  EXPECT_NE(message_of([&] {
              load();
            }).find("tokenizer_config.json: eos_token: the token \"<stop>\" is not in tokenizer.json"),
            std::string::npos);
  write("tokenizer_config.json", {{"eos_token", std::string(100'000, 'a')}});
  EXPECT_LT(message_of([&] { load(); }).size(), 1000u) << "one line that can be read";
  write("tokenizer_config.json", {{"added_tokens_decoder", {{"258", {{"content", "<new>"}}}}}});
  EXPECT_NE(message_of([&] { load(); }).find("added_tokens_decoder.258: the token \"<new>\" is not in tokenizer.json"),
            std::string::npos);
  write("tokenizer_config.json", {{"added_tokens_decoder", {{"3", {{"content", "<end>"}}}}}});
  EXPECT_NE(message_of([&] { load(); }).find("has id 257 in tokenizer.json"), std::string::npos);
  write("tokenizer_config.json", Json::object());
  write("generation_config.json", {{"eos_token_id", 999}});
  EXPECT_NE(message_of([&] { load(); }).find("generation_config.json: eos_token_id: the id 999 has no token"),
            std::string::npos);
}

TEST_F(TokenizerDirectory, TheFingerprintFollowsWhatDecidesTheIds) {
  const std::uint64_t first = load().fingerprint();
  EXPECT_EQ(load().fingerprint(), first);
  write("tokenizer_config.json", {{"chat_template", "{{ messages }}"}});
  EXPECT_EQ(load().fingerprint(), first);
  write("tokenizer_config.json", {{"eos_token", "<end>"}});
  const std::uint64_t with_eos = load().fingerprint();
  EXPECT_NE(with_eos, first);
  write("tokenizer_config.json", {{"eos_token", "<end>"}, {"pad_token", "<end>"}});
  EXPECT_NE(load().fingerprint(), with_eos);
  write("tokenizer_config.json", Json::object());
  Json changed = small_tokenizer();
  changed["model"]["merges"] = Json::array();
  write("tokenizer.json", changed);
  EXPECT_NE(load().fingerprint(), first);
}

}  // namespace
}  // namespace so
