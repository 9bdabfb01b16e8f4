// Each family's tokenizer against what the Hugging Face `tokenizers` library gives
// (fixtures/tokenizer/make_fixtures.py and make_character_fixtures.py).
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/utf8.h"
#include "support/label.h"
#include "support/paths.h"
#include "support/sanitized.h"

namespace so {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

const std::filesystem::path fixtures = std::filesystem::path(test::fixtures()) / "tokenizer";

json read(const std::filesystem::path& file) { return json::parse(std::ifstream(file)); }

const json& texts() {
  static const json all = read(fixtures / "texts.json");
  return all;
}

class TokenizerFamily : public testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path directory_ = fixtures / GetParam();
  Tokenizer tokenizer_ = Tokenizer::load(directory_);
  json expected_ = read(directory_ / "expected.json");

  // The texts that all families share, then the family's own.
  std::vector<std::string> all_texts() const {
    auto all = texts()["texts"].get<std::vector<std::string>>();
    for (const json& more : expected_.value("more", json::array())) all.push_back(more[0]);
    return all;
  }
  std::vector<Ids> all_ids() const {
    auto all = expected_["ids"].get<std::vector<Ids>>();
    for (const json& more : expected_.value("more", json::array())) all.push_back(more[1].get<Ids>());
    return all;
  }
};

TEST_P(TokenizerFamily, EncodesAsTheLibraryDoes) {
  const std::vector<std::string> all = all_texts();
  const std::vector<Ids> ids = all_ids();
  ASSERT_GT(all.size(), 500u);
  for (int round = 0; round < 2; ++round) {  // the second time words come from the cache
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(tokenizer_.encode(all[i], false), ids[i]) << json(all[i]);
  }
}

// The text is longer than a round of batches, but under sanitizers.
TEST_P(TokenizerFamily, ThreadsThatShareALongTextGiveTheSameIds) {
  ThreadPool pool("test", {0, 1}, false);
  std::string text;
  std::vector<std::string> parts;
  const std::vector<std::string> between{"", " ", "\n"};
  for (std::string& part : all_texts())  // added tokens would cut the text into short ones
    if (part.find_first_of("<[|") == std::string::npos) parts.push_back(std::move(part));
  for (std::size_t i = 0; text.size() < (test::sanitized ? 600'000u : 1'200'000u); ++i)
    text += parts[i % parts.size()] + between[i % 3];
  EXPECT_EQ(tokenizer_.encode(text, true, SpecialTokens::parsed, &pool), tokenizer_.encode(text, true));
}

TEST_P(TokenizerFamily, NeverGivesMoreTokensThanItSays) {
  // Characters of which NFC makes more bytes than they have.
  std::vector<std::string> all{"", "\xF0\x9D\x85\xA0", "\xEF\xAC\xAC", "\xCD\x84", "\xE0\xA5\x98", " "};
  for (const json& text : texts()["texts"]) all.push_back(text.get<std::string>());
  for (const std::string& text : all) {
    for (const std::string& given : {text, json(text).dump(-1, ' ', true)})
      EXPECT_GE(tokenizer_.most_tokens(given), tokenizer_.encode(text, true).size()) << given;
  }
  // The models that are nobody's have steps that make much of little.
  const std::vector<std::string> made_up = {"mixed", "characters", "leftovers", "llama2_normalized"};
  if (std::find(made_up.begin(), made_up.end(), GetParam()) == made_up.end()) {
    EXPECT_LE(tokenizer_.most_tokens("ASCII"), 8u);
  }
}

TEST_P(TokenizerFamily, AddsTheSpecialTokensOfThePostProcessor) {
  const json& with_special = expected_["with_special"];
  for (std::size_t i = 0; i < with_special.size(); ++i) {
    EXPECT_EQ(tokenizer_.encode(texts()["texts"][i].get<std::string>(), true), with_special[i].get<Ids>());
  }
}

TEST_P(TokenizerFamily, DecodesAsTheLibraryDoes) {
  for (const json& sequence : expected_["decoded"]) {
    const auto ids = sequence["ids"].get<Ids>();
    EXPECT_EQ(tokenizer_.decode(ids, false), sequence["text"].get<std::string>()) << sequence;
    EXPECT_EQ(tokenizer_.decode(ids, true), sequence["without_special"].get<std::string>()) << sequence;
  }
}

// As the tokenizers library with encode_special_tokens, transformers' split_special_tokens.
TEST_P(TokenizerFamily, EncodesSpecialTokensAsTextWhereAsked) {
  const json as_text = read(directory_ / "special_as_text.json");
  std::map<std::size_t, Ids> differing;
  for (const json& entry : as_text["differing"]) differing[entry[0].get<std::size_t>()] = entry[1].get<Ids>();
  EXPECT_FALSE(differing.empty());
  const json unk = read(directory_ / "tokenizer.json")["model"]["unk_token"];
  const auto unknown = unk.is_null() ? std::nullopt : tokenizer_.token_to_id(unk.get<std::string>());
  const std::vector<std::string> all = all_texts();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Ids ids = tokenizer_.encode(all[i], false, SpecialTokens::as_text);
    EXPECT_EQ(ids, differing.contains(i) ? differing[i] : tokenizer_.encode(all[i], false)) << i << ": " << all[i];
    for (const std::int32_t id : ids) EXPECT_TRUE(!tokenizer_.is_special(id) || id == unknown) << i;
  }
  EXPECT_EQ(tokenizer_.encode(all[differing.begin()->first], true, SpecialTokens::as_text),
            as_text["with_special"].get<Ids>())
      << "what the template adds stays";
}

TEST_P(TokenizerFamily, StreamDecoderGivesTheSameTextWithoutSplittingCharacters) {
  std::vector<Ids> sequences;
  for (const json& sequence : expected_["decoded"]) sequences.push_back(sequence["ids"].get<Ids>());
  for (const Ids& ids : all_ids()) sequences.push_back(ids);
  for (const bool skip : {false, true}) {
    StreamDecoder decoder(tokenizer_, skip);
    for (const Ids& ids : sequences) {
      std::string text;
      for (const std::int32_t id : ids) {
        const std::string piece = decoder.push(id);
        EXPECT_TRUE(is_valid_utf8(piece));
        text += piece;
      }
      text += decoder.finish();
      EXPECT_EQ(text, tokenizer_.decode(ids, skip));
    }
  }
}

TEST_P(TokenizerFamily, KnowsItsSpecialTokens) {
  const auto id = [&](const char* role) {
    return expected_[role].is_null() ? std::optional<std::int32_t>() : expected_[role].get<std::int32_t>();
  };
  EXPECT_EQ(tokenizer_.bos_id(), id("bos"));
  EXPECT_EQ(tokenizer_.eos_id(), id("eos"));
  EXPECT_EQ(tokenizer_.pad_id(), id("pad"));
  EXPECT_EQ(tokenizer_.vocab_size(), expected_["vocab_size"].get<std::int32_t>());
}

TEST_P(TokenizerFamily, NamesEveryTokenOfTheFile) {
  const json file = read(directory_ / "tokenizer.json");
  std::set<std::string> respelt;  // the library names these as a text has them
  for (const json& token : file["added_tokens"])
    if (token["normalized"]) respelt.insert(token["content"]);
  for (const auto& [token, id] : file["model"]["vocab"].items()) {
    EXPECT_EQ(tokenizer_.token_to_id(token), id.get<std::int32_t>());
    if (!respelt.contains(token)) {
      EXPECT_EQ(tokenizer_.id_to_token(id.get<std::int32_t>()), token);
    }
  }
  for (const json& token : file["added_tokens"]) {
    EXPECT_EQ(tokenizer_.token_to_id(token["content"].get<std::string>()), token["id"].get<std::int32_t>());
    EXPECT_EQ(tokenizer_.is_special(token["id"].get<std::int32_t>()), token["special"].get<bool>());
  }
  EXPECT_EQ(tokenizer_.token_to_id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer_.id_to_token(tokenizer_.vocab_size()), "");
  EXPECT_EQ(tokenizer_.id_to_token(-1), "");
}

TEST_P(TokenizerFamily, ReadsInvalidUtf8AsReplacementCharacters) {
  for (const json& example : texts()["invalid"]) {
    std::string bytes;
    const auto hex = example["hex"].get<std::string>();
    for (std::size_t i = 0; i < hex.size(); i += 2)
      bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    const auto repaired = example["repaired"].get<std::string>();
    std::string out;
    append_repaired_utf8(out, bytes);
    EXPECT_EQ(out, repaired) << hex;
    EXPECT_EQ(tokenizer_.encode(bytes, false), tokenizer_.encode(repaired, false)) << hex;
  }
}

TEST_P(TokenizerFamily, ThreadsShareATokenizer) {
  const json& all = texts()["texts"];
  std::vector<std::string> inputs;
  for (std::size_t i = 0; i < all.size(); i += 4) inputs.push_back(all[i].get<std::string>());
  std::vector<std::thread> threads;
  std::atomic<int> differences = 0;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const Tokenizer copy = tokenizer_;
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        const std::size_t at = (i * 7 + static_cast<std::size_t>(thread) * 31) % inputs.size();
        if (copy.encode(inputs[at], false) != expected_["ids"][at * 4].get<Ids>()) ++differences;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(differences, 0);
}

SO_LABEL(sweep, test::each_of("All/TokenizerFamily.*/",
                              {"gemma", "llama2_normalized", "llama3", "mistral", "phi3", "phi4", "seed_oss"}));
INSTANTIATE_TEST_SUITE_P(All, TokenizerFamily,
                         testing::Values("llama3", "qwen3", "phi4", "gpt_oss", "seed_oss", "mixed", "llama2",
                                         "llama2_normalized", "mistral", "phi3", "gemma", "characters", "leftovers"),
                         [](const testing::TestParamInfo<const char*>& family) { return std::string(family.param); });

TEST(TokenizerNormalizer, EqualsTheLibrary) {
  int changed = 0;
  for (const json& example : texts()["nfc"]) {
    const auto text = example[0].get<std::string>();
    std::string storage;
    const std::string normal(to_nfc(text, storage));
    EXPECT_EQ(normal, example[1].get<std::string>()) << example;
    changed += normal != text;
  }
  EXPECT_GT(changed, 100);
}

// 320 KB of marks behind one letter, the worst order for sorting by insertion, which took 16 s for half of it. Composed
// by hand: the first mark below and the first above join the letter, the others stand in canonical order.
TEST(TokenizerNormalizer, OrdersManyMarksInReasonableTime) {
  constexpr int pairs = 80'000;
  std::string text = "a";
  std::string expected = "\u1ead";  // with a dot below and a circumflex
  for (int i = 0; i < pairs; ++i) text += "\u0302\u0323";
  for (int i = 1; i < pairs; ++i) expected += "\u0323";
  for (int i = 1; i < pairs; ++i) expected += "\u0302";
  std::string storage;
  EXPECT_TRUE(to_nfc(text, storage) == expected);
}

TEST(TokenizerNormalizer, LeavesNormalTextWhereItIs) {
  std::string storage;
  for (const std::string text : {"", "plain", "Größe", "각", "नमस्ते", "สวัสดี", "漢字"}) {
    EXPECT_EQ(to_nfc(text, storage).data(), text.data()) << text;
  }
}

TEST(SmallTokenizer, LoadsAndSpellsTheAlpacaTemplateCheaply) {
  const Tokenizer tokenizer = Tokenizer::load(std::filesystem::path(test::source_tree()) / "assets" / "tokenizer");
  EXPECT_EQ(tokenizer.vocab_size(), 4096);
  EXPECT_EQ(tokenizer.eos_id(), tokenizer.token_to_id("<|endoftext|>"));
  EXPECT_EQ(tokenizer.pad_id(), tokenizer.eos_id());
  EXPECT_EQ(tokenizer.bos_id(), std::nullopt);
  for (const char* token : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    EXPECT_EQ(tokenizer.encode(token, false).size(), 1u) << token;
  }
  // One token a word or sign: 6 for the two headings, 16 for the sentence.
  EXPECT_EQ(tokenizer.encode("### Instruction:\n### Response:\n", false).size(), 6u);
  const std::string preamble =
      "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n";
  const Ids ids = tokenizer.encode(preamble, false);
  EXPECT_LE(ids.size(), 20u);
  EXPECT_EQ(tokenizer.decode(ids, false), preamble);
}

}  // namespace
}  // namespace so
