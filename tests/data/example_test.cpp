#include "data/example.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "data_test_util.h"
#include "support/paths.h"

namespace so {
namespace {

using test::ByteEncoder;
using test::Ids;

Ids bytes(std::string_view text) { return ByteEncoder().encode(text, false); }

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(AlpacaPrompt, IsThePublishedTemplate) {
  EXPECT_EQ(
      alpaca_prompt({"Add the numbers.", "1 2", "3"}),
      "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
      "response that appropriately completes the request.\n\n### Instruction:\nAdd the numbers.\n\n### "
      "Input:\n1 2\n\n### Response:\n");
  EXPECT_EQ(alpaca_prompt({"Say hi.", "", "hi"}),
            "Below is an instruction that describes a task. Write a response that appropriately completes the "
            "request.\n\n### Instruction:\nSay hi.\n\n### Response:\n");
}

TEST(Example, TrainsOutputAndEndTokenOfAnAlpacaRecord) {
  const ByteEncoder encoder;
  const AlpacaRecord record{"I", "", "ab"};
  const std::size_t prompt = alpaca_prompt(record).size();
  const Example example = ExampleBuilder(encoder, {.max_length = 1000}).build(record);
  EXPECT_EQ(example.ids, bytes(alpaca_prompt(record) + "ab") + Ids{ByteEncoder::kEnd});
  // The prompt's last token predicts the output's first; the end token predicts nothing.
  EXPECT_EQ(example.targets, Ids(prompt - 1, kIgnored) + (Ids{'a', 'b', ByteEncoder::kEnd, kIgnored}));
  EXPECT_EQ(example.trained, 3);
  EXPECT_FALSE(example.truncated);
}

TEST(Example, TrainsThePromptOnRequest) {
  const ByteEncoder encoder;
  const AlpacaRecord record{"I", "in", "ab"};
  const Example example = ExampleBuilder(encoder, {.max_length = 1000, .train_on_prompt = true}).build(record);
  Ids shifted = example.ids;
  shifted.erase(shifted.begin());
  EXPECT_EQ(example.targets, shifted + Ids{kIgnored});
}

TEST(Example, TrainsTheCompletionOfAPrompt) {
  const ByteEncoder encoder;
  const Example example = ExampleBuilder(encoder, {.max_length = 8}).build(PromptRecord{"ab", "cd"});
  EXPECT_EQ(example.ids, (Ids{'a', 'b', 'c', 'd', ByteEncoder::kEnd}));
  EXPECT_EQ(example.targets, (Ids{kIgnored, 'c', 'd', ByteEncoder::kEnd, kIgnored}));
}

TEST(Example, AddsNothingToAConversation) {
  ByteEncoder encoder;
  encoder.begin = true;
  const ExampleBuilder builder(encoder, {.max_length = 8});
  const Example example = builder.build_chat({{"ab", "c", "d", "", "e", "f"}, {}});
  EXPECT_EQ(example.ids, (Ids{'a', 'b', 'c', 'd', 'e', 'f'}));
  EXPECT_EQ(example.targets, (Ids{kIgnored, 'c', kIgnored, kIgnored, 'f', kIgnored}));
  EXPECT_EQ(test::error_of([&] { builder.build_chat({{}, "no"}); }), "no");
  EXPECT_EQ(test::error_of([&] { builder.build_chat({{""}, {}}); }), "the chat template renders it as an empty text");
}

TEST(Example, TrainsAllOfAText) {
  const ByteEncoder encoder;
  const Example example = ExampleBuilder(encoder, {.max_length = 8}).build(TextRecord{"abc"});
  EXPECT_EQ(example.ids, (Ids{'a', 'b', 'c', ByteEncoder::kEnd}));
  EXPECT_EQ(example.targets, (Ids{'b', 'c', ByteEncoder::kEnd, kIgnored}));
}

TEST(Example, PutsTheTemplatesBeginTokenFirstAndOneEndTokenLast) {
  ByteEncoder encoder;
  encoder.begin = encoder.end = true;
  const ExampleBuilder builder(encoder, {.max_length = 1000});
  EXPECT_EQ(builder.build(TextRecord{"ab"}).ids, (Ids{ByteEncoder::kBegin, 'a', 'b', ByteEncoder::kEnd}));
  const AlpacaRecord record{"I", "", "ab"};
  const Example example = builder.build(record);
  EXPECT_EQ(example.ids, Ids{ByteEncoder::kBegin} + bytes(alpaca_prompt(record)) + (Ids{'a', 'b', ByteEncoder::kEnd}));
  EXPECT_EQ(example.trained, 3);
}

TEST(Example, KeepsTheBoundaryWhereTokensWouldMergeAcrossIt) {
  ByteEncoder encoder;
  encoder.merge = true;
  const ExampleBuilder builder(encoder, {.max_length = 1000});
  // The template ends in "\n"; an output that begins with another would merge with it.
  const AlpacaRecord merging{"I", "", "\nab"};
  const Example apart = builder.build(merging);
  EXPECT_EQ(apart.ids, encoder.encode(alpaca_prompt(merging), false) + (Ids{'\n', 'a', 'b', ByteEncoder::kEnd}));
  EXPECT_EQ(apart.trained, 4);
  // Otherwise the record is tokenised as one text.
  const AlpacaRecord plain{"I", "", "a\n\nb"};
  EXPECT_EQ(builder.build(plain).ids, encoder.encode(alpaca_prompt(plain) + "a\n\nb", false) + Ids{ByteEncoder::kEnd});
}

TEST(Example, UsesTokenIdsAsGivenAndShiftsTheirLabels) {
  ByteEncoder encoder;
  encoder.begin = true;
  const ExampleBuilder builder(encoder, {.max_length = 8});
  const Example example = builder.build(TokenRecord{{5, 6, 7, 8}, {1, kIgnored, 3, 4}});
  EXPECT_EQ(example.ids, (Ids{5, 6, 7, 8}));
  EXPECT_EQ(example.targets, (Ids{kIgnored, 3, 4, kIgnored}));
  EXPECT_EQ(example.trained, 2);
}

// Each document by itself: none predicts the first token of the next.
TEST(Example, TakesApartWhatAnotherProgramPacked) {
  const ByteEncoder encoder;
  const ExampleBuilder builder(encoder, {.max_length = 3});
  const auto documents =
      builder.build_all(TokenRecord{{1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 3, 4, kIgnored, 6, 7, 8}, {3, 4, 8}});
  ASSERT_EQ(documents.size(), 3U);
  EXPECT_EQ(documents[0].ids, (Ids{1, 2, 3}));
  EXPECT_EQ(documents[0].targets, (Ids{2, 3, kIgnored}));
  EXPECT_EQ(documents[1].ids, Ids{4});
  EXPECT_EQ(documents[1].trained, 0);
  EXPECT_EQ(documents[2].ids, (Ids{5, 6, 7}));
  EXPECT_EQ(documents[2].targets, (Ids{6, 7, kIgnored}));
  EXPECT_TRUE(documents[2].truncated);
  EXPECT_FALSE(documents[0].truncated);
  for (const TokenRecord& one : {TokenRecord{{1, 2}, {1, 2}, {2}}, TokenRecord{{1, 2}, {1, 2}, {}}})
    EXPECT_EQ(builder.build_all(one).size(), 1U);
}

// '^' and '$' are special tokens, as a real tokenizer finds them in a text.
class SpellingEncoder : public ByteEncoder {
 public:
  Ids encode(std::string_view text, bool add_special_tokens) const override {
    Ids ids = ByteEncoder::encode(text, add_special_tokens);
    std::replace(ids.begin(), ids.end(), std::int32_t{'^'}, kBegin);
    std::replace(ids.begin(), ids.end(), std::int32_t{'$'}, kEnd);
    return ids;
  }
};

TEST(Example, AddsNoSpecialTokenASecondTime) {
  SpellingEncoder encoder;
  encoder.begin = true;
  constexpr std::int32_t begin = ByteEncoder::kBegin, end = ByteEncoder::kEnd;
  const ExampleBuilder builder(encoder, {.max_length = 1000});
  for (const char* text : {"ab", "^ab", "ab$", "^ab$"}) {
    const Example example = builder.build(TextRecord{text});
    EXPECT_EQ(example.ids, (Ids{begin, 'a', 'b', end})) << text;
    EXPECT_EQ(example.trained, 3);
    EXPECT_EQ(example.begins_already, text[0] == '^');
    EXPECT_EQ(example.ends_already, std::string_view(text).ends_with('$'));
  }
  // White space behind it, as templates write it, is no reason for another one.
  EXPECT_EQ(builder.build(TextRecord{"ab$\n"}).ids, (Ids{begin, 'a', 'b', end, '\n'}));
  EXPECT_EQ(builder.build(TextRecord{"a$b"}).ids, (Ids{begin, 'a', end, 'b', end}));
  EXPECT_EQ(builder.build(TextRecord{"^"}).ids, (Ids{begin, end}));
  EXPECT_EQ(builder.build(TextRecord{""}).ids, (Ids{begin, end}));
  EXPECT_EQ(builder.build(TextRecord{" \n"}).ids, (Ids{begin, ' ', '\n', end}));
  const Ids pair = {begin, 'q', 'a', end};
  for (const char* prompt : {"q", "^q"})
    for (const char* completion : {"a", "a$"}) {
      const Example example = builder.build(PromptRecord{prompt, completion});
      EXPECT_EQ(example.ids, pair) << prompt << completion;
      EXPECT_EQ(example.targets, (Ids{kIgnored, 'a', end, kIgnored}));
    }
  // What the prompt ends with ends no answer.
  EXPECT_EQ(builder.build(PromptRecord{"q$", ""}).ids, (Ids{begin, 'q', end, end}));
  EXPECT_EQ(builder.build(PromptRecord{"q$", ""}).trained, 1);
  EXPECT_EQ(builder.build(AlpacaRecord{"I", "", "a$"}).trained, 2);
  // GPT-2's begins and ends a text.
  encoder.end_id = begin;
  const ExampleBuilder same(encoder, {.max_length = 1000});
  EXPECT_EQ(same.build(TextRecord{""}).ids, (Ids{begin, begin}));
  EXPECT_EQ(same.build(TextRecord{"^a^"}).ids, (Ids{begin, 'a', begin}));
  EXPECT_EQ(same.build(TextRecord{"^"}).ids, (Ids{begin, begin}));
}

TEST(Example, TellsOfAConversationWhoseTurnEndsTwice) {
  const SpellingEncoder encoder;
  const ExampleBuilder builder(encoder, {.max_length = 8});
  EXPECT_TRUE(builder.build_chat({{"q$", "a$$"}, {}}).ends_twice);
  EXPECT_FALSE(builder.build_chat({{"q$$", "a$"}, {}}).ends_twice);
  EXPECT_FALSE(builder.build_chat({{"q$", "$"}, {}}).ends_twice) << "an empty turn behind a prompt";
}

TEST(Example, TruncatesToTheBeginning) {
  const ByteEncoder encoder;
  const ExampleBuilder builder(encoder, {.max_length = 3});
  const Example cut = builder.build(TextRecord{"abc"});  // with the end token 4 tokens
  EXPECT_TRUE(cut.truncated);
  EXPECT_EQ(cut.ids, (Ids{'a', 'b', 'c'}));
  EXPECT_EQ(cut.targets, (Ids{'b', 'c', kIgnored}));
  EXPECT_FALSE(builder.build(TextRecord{"ab"}).truncated);
  const Example prompt_only = builder.build(AlpacaRecord{"I", "", "ab"});
  EXPECT_TRUE(prompt_only.truncated);
  EXPECT_EQ(prompt_only.trained, 0);
  EXPECT_EQ(builder.build(TextRecord{""}).trained, 0);  // the end token alone: nothing predicts it
}

TEST(Example, RefusesEncodersThatCannotWork) {
  ByteEncoder encoder;
  const auto error = [&](const Record& record) {
    return test::error_of([&] { ExampleBuilder(encoder, {.max_length = 8}).build(record); });
  };
  encoder.end_id.reset();
  EXPECT_NE(error(TextRecord{"a"}).find("no end token"), std::string::npos);
  EXPECT_EQ(error(TokenRecord{{1, 2}, {1, 2}}), "");  // needs none

  encoder = {};
  encoder.end = true;
  encoder.end_id = 255;  // the template appends 256
  EXPECT_NE(error(TextRecord{"a"}).find("appends token 256"), std::string::npos);

  encoder = {};
  encoder.vocabulary = 256;
  EXPECT_NE(error(TextRecord{"a"}).find("gives token 256, the model's vocabulary ends at 255"), std::string::npos);

  encoder = {};
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{1}, std::int64_t{1} << 31})
    EXPECT_NE(test::error_of([&] { ExampleBuilder(encoder, {.max_length = bad}); }).find("max_length"),
              std::string::npos);
}

// transformers is given unshifted labels and shifts them itself. Its mean loss must be ours over shifted targets.
TEST(Example, TargetsGiveTheLossOfTransformers) {
  const auto fixture = nlohmann::json::parse(test::read_file(test::fixtures() + "/data/loss.json"));
  ASSERT_EQ(fixture.at("cases").size(), 4u);
  const ByteEncoder encoder;
  for (const auto& c : fixture.at("cases")) {
    RecordParser parser("f", 6);
    const std::string json = c.dump();
    const Example example = ExampleBuilder(encoder, {.max_length = 8}).build(parser.parse({json, 1, -1}));
    double sum = 0;
    for (std::size_t i = 0; i < example.targets.size(); ++i) {
      if (example.targets[i] == kIgnored) continue;
      const auto row = c.at("logits").at(i).get<std::vector<double>>();
      double total = 0;
      for (const double logit : row) total += std::exp(logit);
      sum += std::log(total) - row[static_cast<std::size_t>(example.targets[i])];
    }
    // transformers computes in fp32: a few operations, each with a relative error of 6e-8, on values of about 2.
    EXPECT_NEAR(sum / example.trained, c.at("loss").get<double>(), 2e-6);
  }
}

}  // namespace
}  // namespace so
