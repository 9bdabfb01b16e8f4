// Pre-tokenization: the hand-written splitters against PCRE2, the translation of patterns, and the split behaviours.
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "data/tokenizer/fast_split.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/split_pattern.h"
#include "data/tokenizer/unicode.h"
#include "data/tokenizer/utf8.h"
#include "support/label.h"

namespace so {
namespace {

using Pieces = std::vector<std::string>;

const std::string cl100k =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string qwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string seed =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string o200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Pieces run(const PreTokenizer& pre_tokenizer, const std::string& text) {
  PreTokenizer::Scratch scratch;
  Pieces pieces;
  pre_tokenizer.run(text, true, scratch, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

PreTokenizer with_pattern(const std::string& pattern, bool fast, SplitBehavior behavior = SplitBehavior::Isolated,
                          bool invert = false) {
  return PreTokenizer({SplitStep{pattern, true, behavior, invert, "test"}}, fast);
}

class FastSplitEqualsPcre2 : public testing::TestWithParam<std::string> {
 protected:
  void compare(const std::string& text) const {
    ASSERT_EQ(run(fast_, text), run(regex_, text)) << nlohmann::json(text);
  }

  PreTokenizer fast_ = with_pattern(GetParam(), true);
  PreTokenizer regex_ = with_pattern(GetParam(), false);
};

// Every character, alone and in the neighbourhoods that the patterns tell apart.
SO_LABEL(sweep, "Patterns/FastSplitEqualsPcre2.OnEveryCharacter/*");
TEST_P(FastSplitEqualsPcre2, OnEveryCharacter) {
  ASSERT_NE(fast_split_for(GetParam()), nullptr);
  std::string text;
  for (std::uint32_t c = 1; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    const bool uniform =
        (c > 0x3400 && c < 0x9F00) || (c > 0xAC00 && c < 0xF800) || c > 0x20000;  // ideographs, private use
    if (uniform && c % 997 != 0) continue;
    std::string character;
    append_utf8(character, c);
    for (const char* context : {"%", "a%b", " %A", "1% ", "'%'s", "\n%\r\n", "!%%e", "%%1"}) {
      for (const char* at = context; *at != '\0'; ++at) *at == '%' ? text.append(character) : text.append(1, *at);
      text.push_back('|');
    }
    if (text.size() > 8192) {
      compare(text);
      if (HasFatalFailure()) return;
      text.clear();
    }
  }
  compare(text);
}

TEST_P(FastSplitEqualsPcre2, OnRandomText) {
  std::mt19937 random(1);
  const std::array<std::string, 34> atoms = {"a",      "e",      "s",      "S",      "T",  "d",    "LL", "ve",   "'",
                                             "'s",     "'RE",    "1",      "22",     " ",  "  ",   "\n", "\r\n", "\t",
                                             "\u00a0", "\u3000", "/",      ".",      "!?", "_",    "É",  "ß",    "ǅ",
                                             "ʰ",      "中",     "\u0301", "\u20dd", "½",  "🙂", "ſ"};
  for (int i = 0; i < 10000; ++i) {
    std::string text;
    for (unsigned n = random() % 12 + 1; n != 0; --n) text += atoms[random() % atoms.size()];
    compare(text);
    if (HasFatalFailure()) return;
  }
}

std::string pattern_name(const testing::TestParamInfo<std::string>& pattern) {
  constexpr std::array names = {"cl100k", "qwen2", "seed", "o200k", "gpt2", "digits", "digit_runs"};
  return names.at(pattern.index);
}

INSTANTIATE_TEST_SUITE_P(Patterns, FastSplitEqualsPcre2,
                         testing::Values(cl100k, qwen2, seed, o200k, std::string(gpt2_split_pattern),
                                         std::string(each_digit_pattern), std::string(digit_runs_pattern)),
                         pattern_name);

TEST(SplitPattern, SeesTheSameSpacesAsOniguruma) {
  // U+180E is a space to PCRE2's \s, but has not been one since Unicode 6.3; U+0085 is one to both.
  EXPECT_EQ(run(with_pattern(R"(\s+)", false), "a\u180eb\u0085c\u00a0d"),
            (Pieces{"a\u180eb", "\u0085", "c", "\u00a0", "d"}));
}

TEST(SplitPattern, KnowsCharactersNewerThanTheInstalledPcre2) {
  // Unicode 16: U+10D50 is an upper-case letter, U+10D70 a lower-case one, U+10D40 a digit, U+10D69 a mark.
  EXPECT_EQ(run(with_pattern(R"(\p{L}+|\p{N}+)", false), "\U00010d50\U00010d70\U00010d40!"),
            (Pieces{"\U00010d50\U00010d70", "\U00010d40", "!"}));
  EXPECT_EQ(run(with_pattern(R"(\p{Lu}\p{Ll}|\p{M})", false), "a\U00010d50\U00010d70\U00010d69"),
            (Pieces{"a", "\U00010d50\U00010d70", "\U00010d69"}));
}

TEST(SplitPattern, LongRunsDoNotExhaustTheEngine) {
  for (const std::string& pattern : {cl100k, o200k}) {
    for (const char* unit : {" ", "A", "\n", "中", "-", "Aa"}) {
      std::string text;
      while (text.size() < 300'000) text += unit;
      std::size_t bytes = 0;
      for (const std::string& piece : run(with_pattern(pattern, false), text + "x")) bytes += piece.size();
      EXPECT_EQ(bytes, text.size() + 1);
    }
  }
}

TEST(SplitPattern, RefusesWhatTheEnginesReadDifferently) {
  const std::array<std::string, 23> refused = {
      "^a",      R"(\w+)",     R"(\ba)",      R"(\h)", R"(\v)",  R"(\x41)",   "[[a]]", R"(\p{Han}+)",
      R"(\pL)",  "[a&&b]",     "[[:alpha:]]", "(?i)a", "(?i:ß)", "(?i:[^a])", "a{2}?", "a{x",
      "(?<!a)b", "(?i:[a-c])", "(?<=a)b",     "a{,3}", "a]",     "[a",        "(?#x)a"};
  for (const std::string& pattern : refused) {
    try {
      SplitPattern::regex(pattern, "FILE: KEY");
      ADD_FAILURE() << "accepted " << pattern;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("FILE: KEY"), std::string::npos) << error.what();
    }
  }
}

// As the tokenizers library cuts (pre_tokenizers.Split with the same pattern).
TEST(SplitPattern, RepeatsACountAndEndsLinesAsOnigurumaDoes) {
  const auto cut = [](const char* pattern, const char* text) { return run(with_pattern(pattern, false), text); };
  EXPECT_EQ(cut("a{2,3}+", "aaaaab"), (Pieces{"aaaaa", "b"})) << "not possessive: the count itself is repeated";
  EXPECT_EQ(cut("(?:ab){2}+a", "ababababa"), (Pieces{"ababababa"}));
  EXPECT_EQ(cut("[ab]{2}+a", "abba"), (Pieces{"a", "bba"}));
  EXPECT_EQ(cut("a$", "a\na a"), (Pieces{"a", "\na ", "a"}));
  EXPECT_EQ(cut("\n$", "a\n"), (Pieces{"a", "\n"}));
  EXPECT_EQ(cut("(?i:[sd]|ll)", "aſDLlx"), (Pieces{"a", "ſ", "D", "Ll", "x"}));
}

TEST(SplitPattern, ReadsThePatternThatTiktokenHasToday) {
  const std::string pattern =
      R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
  EXPECT_EQ(run(with_pattern(pattern, true), "It's  12345 a\n\n b'LL !?\r\n  \n "),
            (Pieces{"It", "'s", " ", " ", "12345", " a", "\n\n", " b", "'LL", " !?\r\n", "  \n "}));
}

TEST(SplitPattern, RefusesEmptyMatchesAndMistakes) {
  for (const char* pattern : {"a*", "a|", "(?=a)", "(", "a**", "", "(?:a"}) {
    EXPECT_THROW(SplitPattern::regex(pattern, "test"), Error) << pattern;
  }
  EXPECT_THROW(SplitPattern::regex(std::string(5000, 'a'), "test"), Error);
  EXPECT_THROW(SplitPattern::literal("", "test"), Error);
}

TEST(SplitPattern, GivesUpOnExponentialSearches) {
  EXPECT_THROW(run(with_pattern("(?:a|a)+[bc]", false), std::string(64, 'a')), Error);
}

// Each place is looked at up to the end of the text: in one search that finds nothing, and in many that find one
// letter.
TEST(SplitPattern, GivesUpOnSearchesThatAreQuadraticInTheText) {
  // They would take 20 s and more.
  for (const auto& [pattern, bytes] : {std::pair{"(?=a*b)a|z", 400'000}, {"a*b|a", 150'000}}) {
    try {
      run(with_pattern(pattern, false), std::string(static_cast<std::size_t>(bytes), 'a'));
      ADD_FAILURE() << pattern;
    } catch (const Error& error) {
      const std::string expected = "takes far longer to search a text of " + std::to_string(bytes) + " bytes";
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
}

TEST(SplitPattern, FindsMatchesHoweverFarAway) {
  const auto repeated = [](const char* unit, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += unit;
    return text;
  };
  for (const int far : {84, 85, 86, 87, 255, 256, 257, 258, 1000, 50'000}) {
    const std::string before = repeated("中", far), between = repeated("é", far), behind = repeated("a", far);
    EXPECT_EQ(run(with_pattern("x|yz", false), before + "x" + between + "yz" + behind),
              (Pieces{before, "x", between, "yz", behind}))
        << far;
  }
}

// Expected pieces as the documentation of Split gives them for its behaviours.
TEST(SplitBehaviors, AsDocumented) {
  const std::string text = "the-final--countdown";
  const auto pieces = [&](SplitBehavior behavior, bool invert = false) {
    return run(with_pattern("-", false, behavior, invert), text);
  };
  EXPECT_EQ(pieces(SplitBehavior::Removed), (Pieces{"the", "final", "countdown"}));
  EXPECT_EQ(pieces(SplitBehavior::Isolated), (Pieces{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(pieces(SplitBehavior::MergedWithPrevious), (Pieces{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(pieces(SplitBehavior::MergedWithNext), (Pieces{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(pieces(SplitBehavior::Contiguous), (Pieces{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(pieces(SplitBehavior::Removed, true), (Pieces{"-", "-", "-"}));
}

TEST(SplitBehaviors, RemovingEveryMatchOfAFastPatternLeavesNothing) {
  EXPECT_EQ(run(with_pattern(qwen2, true, SplitBehavior::Removed), "a b 1"), Pieces{});
  EXPECT_EQ(run(with_pattern(qwen2, true, SplitBehavior::Removed, true), "a b 1"), (Pieces{"a", " b", " ", "1"}));
}

TEST(PreTokenizer, PutsASpaceInFrontOfEachPiece) {
  const PreTokenizer pre_tokenizer(
      {SplitStep{",", false, SplitBehavior::Isolated, false, "test"}, ByteLevelStep{true, true}});
  EXPECT_EQ(run(pre_tokenizer, "a b, c"), (Pieces{" a", " b", " ,", " c"}));
}

TEST(UnicodeTable, HasTheClassesOfUnicode16) {
  const UnicodeTable& table = UnicodeTable::get();
  EXPECT_EQ(table.category('A'), Category::Lu);
  EXPECT_EQ(table.category(0x01C5), Category::Lt);
  EXPECT_EQ(table.category(0x4E2D), Category::Lo);
  EXPECT_EQ(table.category(0x10FFFF), Category::Cn);
  EXPECT_EQ(table.category(0xD800), Category::Cs);
  EXPECT_EQ(table.category(0x1C89), Category::Lu);  // new in 16.0
  EXPECT_TRUE(table.in_unicode_9(0x4E2D));
  EXPECT_FALSE(table.in_unicode_9(0x10D00));  // 11.0
  EXPECT_TRUE(table.in_unicode_14(0x10D00));
  EXPECT_FALSE(table.in_unicode_14(0x1C89));
  int letters = 0;
  for (std::uint32_t c = 0; c < 0x110000; ++c) letters += (table.bits(c) & character_bits::letter) != 0;
  EXPECT_EQ(letters, 141028);  // the number of \p{L} in Unicode 16.0
}

}  // namespace
}  // namespace so
