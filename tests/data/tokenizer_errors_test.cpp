// Errors in tokenizer.json are refused with its name and the key.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/small_tokenizer.h"
#include "data/tokenizer/tokenizer.h"

namespace so {
namespace {

using test::Json;
using test::message_of;
using test::small_tokenizer;
using Ids = std::vector<std::int32_t>;

Tokenizer parse(const Json& json) { return Tokenizer::parse(json.dump(), "FILE"); }

struct Mistake {
  const char* name;
  std::function<void(Json&)> make;
  const char* expected;  // in the message
};

Json split_stage(const char* pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}

const std::vector<Mistake> mistakes = {
    {"no model", [](Json& j) { j.erase("model"); }, "\"model\" is missing"},
    {"no vocabulary", [](Json& j) { j["model"].erase("vocab"); }, "\"vocab\" is missing in model"},
    {"empty vocabulary", [](Json& j) { j["model"]["vocab"] = Json::object(); }, "model.vocab is empty"},
    {"vocabulary of another kind", [](Json& j) { j["model"]["vocab"] = 3; }, "model.vocab must be an object"},
    {"no merges", [](Json& j) { j["model"].erase("merges"); }, "\"merges\" is missing in model"},
    {"unigram", [](Json& j) { j["model"]["type"] = "Unigram"; }, "type \"Unigram\" is not supported"},
    {"incomplete bytes", [](Json& j) { j["model"]["vocab"].erase("a"); }, "no token for the byte 0x61"},
    {"negative id", [](Json& j) { j["model"]["vocab"]["he"] = -1; },
     "model.vocab[\"he\"]: the id must be an integer in"},
    {"huge id", [](Json& j) { j["model"]["vocab"]["he"] = 1 << 30; },
     "model.vocab[\"he\"]: the id must be an integer in"},
    {"fractional id", [](Json& j) { j["model"]["vocab"]["he"] = 1.5; },
     "model.vocab[\"he\"]: the id must be an integer in"},
    {"one id twice", [](Json& j) { j["model"]["vocab"]["he"] = 'a'; }, "\"a\" and \"he\" have the same id 97"},
    {"unknown left", [](Json& j) { j["model"]["merges"] = {"zz e"}; },
     "model.merges[0]: the token \"zz\" is not in model.vocab"},
    {"unknown result",
     [](Json& j) {
       j["model"]["merges"] = {"h e", "a b"};
     },
     "model.merges[1]: the token \"ab\" is not in model.vocab"},
    {"merge of one", [](Json& j) { j["model"]["merges"] = {"he"}; }, "model.merges[0]: \"he\" is not two tokens"},
    {"merge of three", [](Json& j) { j["model"]["merges"] = {"h e e"}; },
     "model.merges[0]: \"h e e\" is not two tokens"},
    {"merge list of three",
     [](Json& j) {
       j["model"]["merges"] = {{"h", "e", "e"}};
     },
     "model.merges[0] must be"},
    {"merge twice",
     [](Json& j) {
       j["model"]["merges"] = {"h e", "h e"};
     },
     "model.merges[1]: the pair \"h\" \"e\" occurs twice"},
    {"merge number", [](Json& j) { j["model"]["merges"] = {1}; }, "model.merges[0] must be"},
    {"dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }, "model.dropout is 0.1"},
    {"prefix", [](Json& j) { j["model"]["continuing_subword_prefix"] = "##"; },
     "model.continuing_subword_prefix is \"##\""},
    {"suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "model.end_of_word_suffix is \"</w>\""},
    {"unknown model key", [](Json& j) { j["model"]["magic"] = 1; }, "the key \"magic\" is not supported in model"},
    {"unknown key", [](Json& j) { j["magic"] = 1; }, "the key \"magic\" is not supported"},
    {"version", [](Json& j) { j["version"] = "2.0"; }, "version is \"2.0\""},
    {"added id off", [](Json& j) { j["added_tokens"][0]["id"] = 300; },
     "\"<end>\" has id 300, but the next free id is 257"},
    {"added id taken", [](Json& j) { j["added_tokens"][0]["id"] = 5; }, "\"<end>\" has id 5, but another token has it"},
    {"added id other", [](Json& j) { j["added_tokens"][0]["content"] = "he"; },
     "\"he\" has id 257, but 256 in model.vocab"},
    {"added twice", [](Json& j) { j["added_tokens"].push_back(j["added_tokens"][0]); }, "\"<end>\" occurs twice"},
    {"added long", [](Json& j) { j["added_tokens"][0]["content"] = std::string(1001, 'a'); },
     "added_tokens[0].content has 1001 bytes, 1000 at most are read"},
    {"added empty", [](Json& j) { j["added_tokens"][0]["content"] = ""; }, "added_tokens[0].content is empty"},
    {"added flag missing", [](Json& j) { j["added_tokens"][0].erase("lstrip"); },
     "\"lstrip\" is missing in added_tokens[0]"},
    {"normalizer",
     [](Json& j) {
       j["normalizer"] = {{"type", "Lowercase"}};
     },
     "normalizer: type \"Lowercase\" is not supported"},
    {"nested normalizer",
     [](Json& j) {
       j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "Nmt"}}}}};
     },
     "normalizer.normalizers[1]: type \"Nmt\" is not supported"},
    {"no pre-tokenizer", [](Json& j) { j["pre_tokenizer"] = nullptr; },
     "model: characters without a token would be lost"},
    {"metaspace",
     [](Json& j) {
       j["pre_tokenizer"] = {{"type", "Metaspace"}};
     },
     "\"replacement\" is missing in pre_tokenizer"},
    {"no byte level", [](Json& j) { j["pre_tokenizer"] = split_stage("a"); },
     "model: characters without a token would be lost"},
    {"split behind byte level",
     [](Json& j) {
       j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {j["pre_tokenizer"], split_stage("a")}}};
     },
     "pre_tokenizer.pretokenizers[1]: a stage behind ByteLevel"},
    {"bad pattern",
     [](Json& j) {
       j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split_stage("(a"), j["pre_tokenizer"]}}};
     },
     "pre_tokenizer.pretokenizers[0].pattern: the split pattern is not a regular expression"},
    {"bad behavior",
     [](Json& j) {
       Json stage = split_stage("a");
       stage["behavior"] = "Dropped";
       j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {stage, j["pre_tokenizer"]}}};
     },
     "behavior: \"Dropped\" is none of"},
    {"processor",
     [](Json& j) {
       j["post_processor"] = {{"type", "RobertaProcessing"}};
     },
     "type \"RobertaProcessing\" is not supported"},
    {"template id",
     [](Json& j) {
       j["post_processor"] = Json::parse(R"({"type": "TemplateProcessing", "pair": [],
           "single": [{"SpecialToken": {"id": "<b>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
           "special_tokens": {"<b>": {"id": "<b>", "ids": [999], "tokens": ["<b>"]}}})");
     },
     "post_processor adds the id 999"},
    {"template without text",
     [](Json& j) {
       j["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", Json::array()},
                              {"pair", Json::array()},
                              {"special_tokens", Json::object()}};
     },
     "post_processor.single must hold the sequence A exactly once"},
    {"decoder",
     [](Json& j) {
       j["decoder"] = {{"type", "WordPiece"}};
     },
     "decoder: type \"WordPiece\" is not supported"},
};

// "▁", "a", "▁a" and the bytes, as Llama 2 has them.
Json small_character_tokenizer() {
  Json vocab = {{"<unk>", 0}, {"▁", 257}, {"a", 258}, {"▁a", 259}};
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = byte + 1;
  return Json::parse(R"({"version": "1.0", "added_tokens": [], "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
      "pre_tokenizer": null, "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
      "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": )" +
                     vocab.dump() + R"(, "merges": ["▁ a"]}})");
}

const std::vector<Mistake> character_mistakes = {
    {"no bytes",
     [](Json& j) {
       j["model"]["vocab"].erase("<0x61>");
       j["model"]["unk_token"] = nullptr;
     },
     "no token for the byte 0x61 (\"<0x61>\"): this is not a complete vocabulary of SentencePiece"},
    {"unknown unk",
     [](Json& j) {
       j["model"]["byte_fallback"] = false;
       j["model"]["unk_token"] = "<none>";
     },
     "model.unk_token: the token \"<none>\" is not in model.vocab"},
    {"loses characters",
     [](Json& j) {
       j["model"]["byte_fallback"] = false;
       j["model"]["unk_token"] = nullptr;
     },
     "model: characters without a token would be lost"},
    {"Unigram",
     [](Json& j) {
       j["model"] = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", Json::array()}};
     },
     "model: type \"Unigram\" is not supported (BPE is)"},
    {"WordPiece",
     [](Json& j) {
       j["model"] = {{"type", "WordPiece"}};
     },
     "model: type \"WordPiece\" is not supported (BPE is)"},
    {"empty pattern", [](Json& j) { j["normalizer"]["normalizers"][1]["pattern"]["String"] = ""; },
     "normalizer.normalizers[1].pattern: the pattern is empty"},
    {"bad regex",
     [](Json& j) {
       j["normalizer"]["normalizers"][1]["pattern"] = {{"Regex", "(a"}};
     },
     "normalizer.normalizers[1].pattern: "},
    {"precompiled",
     [](Json& j) {
       j["normalizer"] = {{"type", "Precompiled"}};
     },
     "normalizer: type \"Precompiled\" is not supported"},
    {"replacement",
     [](Json& j) {
       j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "__"}};
     },
     "pre_tokenizer.replacement must be one character"},
    {"scheme",
     [](Json& j) {
       j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}};
     },
     "pre_tokenizer.prepend_scheme: \"last\" is none of always, first, never"},
    {"contradiction",
     [](Json& j) {
       j["pre_tokenizer"] = {
           {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}, {"add_prefix_space", false}};
     },
     "pre_tokenizer.add_prefix_space is false, but the prepend_scheme is \"first\""},
    {"first behind a cut",
     [](Json& j) {
       const Json first = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}};
       j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split_stage("a"), first}}};
     },
     "pre_tokenizer: prepend_scheme \"first\" behind another step"},
    {"bytes decoder",
     [](Json& j) {
       j["decoder"] = {{"type", "ByteLevel"}};
     },
     "decoder: type \"ByteLevel\" is not supported"},
    {"decoder that grows",
     [](Json& j) {
       const Json twice = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
       for (int i = 0; i < 10; ++i) j["decoder"]["decoders"].insert(j["decoder"]["decoders"].begin(), twice);
     },
     "decoder.decoders[6]: the decoder can make a text more than 64 times as long"},
    {"stages",
     [](Json& j) {
       const Json lists = {{"type", "Sequence"}, {"normalizers", Json(60, Json{{"type", "NFC"}})}};
       j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {lists, lists}}};
     },
     "normalizer has more than 100 stages"},
    {"template",
     [](Json& j) {
       const Json token = {{"SpecialToken", {{"id", "a"}, {"type_id", 0}}}};
       Json single(1, Json{{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
       for (int i = 0; i < 100; ++i) single.push_back(token);
       j["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", single},
                              {"pair", Json::array()},
                              {"special_tokens", {{"a", {{"id", "a"}, {"ids", Json(11, 1)}, {"tokens", {"a"}}}}}}};
     },
     "post_processor.single adds more than 1000 tokens to a text"},
    {"behind fuse", [](Json& j) { std::swap(j["decoder"]["decoders"][0], j["decoder"]["decoders"][2]); },
     "decoder.decoders[1]: a stage of type \"ByteFallback\" behind Fuse"},
    {"stop", [](Json& j) { j["decoder"]["decoders"][3]["stop"] = 1; }, "decoder.decoders[3].stop must be 0"},
    {"decoder's regex",
     [](Json& j) {
       j["decoder"]["decoders"][0]["pattern"] = {{"Regex", "a"}};
     },
     "decoder.decoders[0].pattern: a decoder's pattern must be a \"String\""},
};

TEST(TokenizerErrors, SmallTokenizersAreRight) {
  const Tokenizer characters = parse(small_character_tokenizer());
  EXPECT_EQ(characters.encode("a é a", false), (Ids{259, 257, 0xC3 + 1, 0xA9 + 1, 259}));
  EXPECT_EQ(characters.decode(Ids{259, 257, 0xC3 + 1, 0xA9 + 1, 259}, false), "a é a");

  const Tokenizer tokenizer = parse(small_tokenizer());
  EXPECT_EQ(tokenizer.encode("he<end>h", true), (Ids{256, 257, 'h'}));
  EXPECT_EQ(tokenizer.vocab_size(), 258);
}

TEST(TokenizerErrors, EachMistakeIsNamed) {
  std::vector<std::pair<Json, const Mistake*>> all;
  for (const Mistake& mistake : mistakes) all.emplace_back(small_tokenizer(), &mistake);
  for (const Mistake& mistake : character_mistakes) all.emplace_back(small_character_tokenizer(), &mistake);
  for (auto& one : all) {
    Json& json = one.first;
    const Mistake& mistake = *one.second;
    mistake.make(json);
    const std::string message = message_of([&] { parse(json); });
    EXPECT_NE(message.find(mistake.expected), std::string::npos) << mistake.name << ": " << message;
    EXPECT_EQ(message.rfind("FILE", 0), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

// A chain of steps that each make a text longer ends the text, not the memory.
TEST(TokenizerErrors, NormalizersMakeNoTextManyTimesAsLong) {
  const auto replace = [](const char* key, const char* pattern, const std::string& content) {
    return Json{{"type", "Replace"}, {"pattern", {{key, pattern}}}, {"content", content}};
  };
  const auto encoded = [](const Json& steps) {
    Json json = small_tokenizer();
    json["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
    return message_of([&] { parse(json).encode(std::string(10'000, 'a'), false); });
  };
  const std::string grows = "the normalizer makes a text more than 64 times as long";
  for (const char* key : {"String", "Regex"}) {
    const std::string chain = encoded(Json(40, replace(key, "a", "aa")));
    EXPECT_NE(chain.find("normalizers[6].pattern: " + grows), std::string::npos) << chain;
    const std::string one = encoded(Json(1, replace(key, "a", std::string(1'000'000, 'b'))));
    EXPECT_NE(one.find(grows), std::string::npos) << one;
    EXPECT_EQ(encoded(Json(1, replace(key, "a", std::string(20, 'b')))), "no error");
  }
  const std::string prepend = encoded(Json(1, Json{{"type", "Prepend"}, {"prepend", std::string(1'000'000, 'b')}}));
  EXPECT_NE(prepend.find(grows), std::string::npos) << prepend;
}

TEST(TokenizerErrors, DuplicatesInTheText) {
  std::string text = small_tokenizer().dump();
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return message_of([&] { Tokenizer::parse(changed, "FILE"); });
  };
  EXPECT_NE(with("\"he\":256", "\"he\":256,\"he\":258").find("\"he\" occurs twice"), std::string::npos);
  EXPECT_NE(with("\"merges\":", "\"merges\":[],\"merges\":").find("\"merges\" occurs twice"), std::string::npos);
}

TEST(TokenizerErrors, EveryPrefixOfAFileIsRefused) {
  const std::string text = small_tokenizer().dump();
  for (std::size_t length = 0; length < text.size(); length += 13) {
    EXPECT_THROW(Tokenizer::parse(text.substr(0, length), "FILE"), Error) << length;
  }
}

// As tokenizers and transformers number them, whatever the file says.
TEST(TokenizerErrors, AddedTokensAreNumberedInTheOrderOfTheFile) {
  Json json = small_tokenizer();
  for (const char* content : {"<b>", "he", "<c>"}) {
    json["added_tokens"].push_back(json["added_tokens"][0]);
    json["added_tokens"].back()["content"] = content;
  }
  const std::array<std::int32_t, 4> ids = {259, 257, 256, 258};
  for (std::size_t i = 0; i < ids.size(); ++i) json["added_tokens"][i]["id"] = ids[i];
  const Tokenizer tokenizer = parse(json);
  EXPECT_EQ(tokenizer.encode("<end><b>he<c>", false), (Ids{257, 258, 256, 259}));
  EXPECT_EQ(tokenizer.decode(Ids{257, 258, 259}, false), "<end><b><c>");
  EXPECT_EQ(tokenizer.vocab_size(), 260);
}

// The prepend_scheme "first" means the text as given: ids of tokenizers 0.23.
TEST(TokenizerErrors, ATextWhoseBeginningIsReplacedHasNoFirstPiece) {
  Json json = small_character_tokenizer();
  json["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", true}};
  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "[ab]+"}}}, {"content", "a"}};
  EXPECT_EQ(parse(json).encode("b", false), Ids{259});
  EXPECT_EQ(parse(json).encode("bb", false), Ids{258});
  json["normalizer"]["content"] = "";
  EXPECT_EQ(parse(json).encode("b▁a", false), Ids{257});
  EXPECT_EQ(parse(json).encode("b\n", false), Ids{11});
}

TEST(TokenizerErrors, DigitsAreCutApart) {
  Json json = small_tokenizer();
  json["model"]["vocab"]["12"] = 258;
  json["model"]["vocab"]["Ġ1"] = 259;
  json["model"]["merges"] = {"h e", "1 2", "Ġ 1"};
  json["added_tokens"] = Json::array();
  Json digits = {{"type", "Digits"}, {"individual_digits", true}};
  const Json byte_level = json["pre_tokenizer"];
  const auto encode = [&] {
    json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {digits, byte_level}}};
    return parse(json).encode("he 12", false);
  };
  json["model"]["vocab"].erase("he");
  json["model"]["vocab"]["he"] = 257;
  EXPECT_EQ(encode(), (Ids{257, ' ', '1', '2'}));
  digits["individual_digits"] = false;
  EXPECT_EQ(encode(), (Ids{257, ' ', 258}));
  digits.erase("individual_digits");
  EXPECT_NE(message_of([&] { encode(); }).find("\"individual_digits\" is missing"), std::string::npos);
}

TEST(TokenizerErrors, TruncationAndPaddingAreIgnored) {
  Json json = small_tokenizer();
  json["truncation"] = {{"max_length", 1}};
  json["padding"] = {{"length", 9}};
  EXPECT_EQ(parse(json).encode("hehe", false), (Ids{256, 256}));
}

}  // namespace
}  // namespace so
