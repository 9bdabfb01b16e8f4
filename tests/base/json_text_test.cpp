// Numbers as Python's json writes them, for parsers that know only 64 bits and doubles.
#include "base/json_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/json_tree.h"

namespace so {
namespace {

using nlohmann::json;

TEST(JsonText, WhatStrictParsersReadIsLeftAlone) {
  for (const char* text :
       {"", "{}", "[0, -0, 1.5, 1e-5, 1e308, 123456789012345678901234567890.5]", "18446744073709551615",
        "-9223372036854775808", R"({"NaN": "NaN", "a\"b": "1000000000000000000000 \\", "c": "Infinity"})", "1e-999",
        "[-NaN, +Infinity, 01, 1NaN, NaNx, nan, infinity, --1, 1e, 12345678901234567890123x]", "\"NaN", "\"a\\\""})
    EXPECT_EQ(with_plain_numbers(text), std::nullopt) << text;
}

TEST(JsonText, OtherNumbersBecomeDoubles) {
  const auto plain = with_plain_numbers(
      "{\"a\": NaN,\n\"b\":-Infinity,\"c\":[Infinity,1000000000000000019884624838656],\n"
      "\"d\":18446744073709551616,\"e\":-9223372036854775809,\"f\":1e999,\"g\":-1E+400,\"NaN\":\"NaN\"}");
  ASSERT_TRUE(plain);
  EXPECT_EQ(std::count(plain->begin(), plain->end(), '\n'), 2);
  const double largest = 1.7976931348623157e308;
  const json j = json::parse(*plain);
  EXPECT_EQ(j["a"], largest);
  EXPECT_EQ(j["b"], -largest);
  EXPECT_EQ(j["c"], (json{largest, 1e30}));
  EXPECT_EQ(j["d"], 18446744073709551616.0);
  EXPECT_EQ(j["e"], -9223372036854775808.0);
  EXPECT_TRUE(j["e"].is_number_float());
  EXPECT_EQ(j["f"], largest);
  EXPECT_EQ(j["g"], -largest);
  EXPECT_EQ(j["NaN"], "NaN");
}

TEST(JsonText, IntegersOfAnyLength) {
  const json j = json::parse(*with_plain_numbers("[" + std::string(5000, '7') + ",-" + std::string(400, '9') + "]"));
  EXPECT_EQ(j[0], 1.7976931348623157e308);
  EXPECT_EQ(j[1], -1.7976931348623157e308);
}

// Python writes texts that were cut within a character so, and reads them.
TEST(JsonText, HalfOfASurrogatePairStopsNobody) {
  const auto plain =
      with_plain_numbers(R"({"a\udc00": "x\ud83d", "b": ["\ud83d\ud83d\ude00", "\\ud83d", "\uD83D\n"], "c": NaN})");
  ASSERT_TRUE(plain);
  const json j = json::parse(*plain);
  const std::string half(half_pair);
  EXPECT_EQ(j["a" + half], "x" + half);
  EXPECT_EQ(j["b"], (json{half + "\U0001f600", "\\ud83d", half + "\n"}));
  EXPECT_EQ(with_plain_numbers(R"(["\ud83d\ude00", "\\ud83d", "\u00e9", "\ud83", "\u)"), std::nullopt);
}

TEST(JsonText, HeldNumbersComeBackAsTheyWere) {
  const std::string text =
      R"({"a":NaN,"b":[1000000000000000019884624838656,-Infinity],"c":"held number 0","d":1e999,"e":18446744073709551616})";
  const HeldNumbers held(text);
  auto j = nlohmann::ordered_json::parse(held.text());
  EXPECT_EQ(held.restored(j.dump()), text);
  j.erase("b");
  EXPECT_EQ(held.restored(j.dump()), R"({"a":NaN,"c":"held number 0","d":1e999,"e":18446744073709551616})");
  EXPECT_EQ(HeldNumbers("[1]").restored("[1]"), "[1]");
  const std::string halves = R"({"a":"\ud83d x","b":NaN,"c":["\ude00\ud83d"]})";
  const HeldNumbers held_halves(halves);
  EXPECT_EQ(held_halves.restored(nlohmann::ordered_json::parse(held_halves.text()).dump()), halves);
}

TEST(JsonText, AFaultIsNamedWithItsLine) {
  EXPECT_EQ(json_fault("{\n\"a\": NaN,\n oops}", "reason"), ":3: reason");
  EXPECT_EQ(json_fault("{\"a\": 1000000000000000000000000000}", "too deep"), ": too deep");
}

TEST(JsonTrees, HaveADepthThatEveryStackBears) {
  EXPECT_FALSE(nests_deeper("[[1],{\"a\":[2]}]", 3));
  EXPECT_TRUE(nests_deeper("[[1],{\"a\":[2]}]", 2));
  EXPECT_FALSE(nests_deeper(R"({"[[[[":"]}{{\"[[[\\"})", 1));
  const std::string deep(3'000'000, '['), objects = [] {
    std::string text;
    for (int i = 0; i < 1'000'000; ++i) text += "{\"a\":";
    return text;
  }();
  for (const std::string& text : {deep, objects, deep + std::string(deep.size(), ']'), "{\"a\":" + deep})
    EXPECT_TRUE(json_tree(text).is_discarded());
  const std::string most(max_json_depth, '['), closed = most + std::string(max_json_depth, ']');
  EXPECT_EQ(nlohmann::json(json_tree(closed)).dump(), closed);
  EXPECT_TRUE(json_tree("[" + closed + "]").is_discarded());
  EXPECT_TRUE(json_tree("").is_discarded());
}

}  // namespace
}  // namespace so
