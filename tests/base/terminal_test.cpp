#include "base/terminal.h"

#include <gtest/gtest.h>

#include <string_view>

namespace so {
namespace {

TEST(Terminal, CountsColumnsOfUtf8) {
  EXPECT_EQ(columns_of("abc"), 3u);
  EXPECT_EQ(columns_of("na\u00efve"), 5u);
  EXPECT_EQ(columns_of("nai\u0308ve"), 5u) << "a combining mark takes none";
  EXPECT_EQ(columns_of("\u6a21\u578b"), 4u);
  EXPECT_EQ(columns_of("\xff\x80"), 2u) << "bytes that are not UTF-8";
  EXPECT_EQ(columns_of("\xe6\xa8"), 2u) << "half a character";
}

TEST(Terminal, NeverCutsACharacterInHalf) {
  EXPECT_EQ(head_of("a\u6a21\u578b", 2), "a");
  EXPECT_EQ(head_of("a\u6a21\u578b", 3), "a\u6a21");
  EXPECT_EQ(head_of("abc", 9), "abc");
  EXPECT_EQ(tail_of("\u6a21\u578bz", 2), "z");
  EXPECT_EQ(tail_of("\u6a21\u578bz", 3), "\u578bz");
}

TEST(Terminal, FindsTheFirstByteThatIsNotUtf8) {
  for (const std::string_view text : {"", "abc", "a\x01\x7f", "na\u00efve", "\u6a21\U0001f600"})
    EXPECT_EQ(utf8_prefix(text), text.size()) << text;
  for (const std::string_view text :
       {"ab\xff", "ab\x80", "ab\xe6\xa8", "ab\xc0\x80", "ab\xed\xa0\x80\u6a21", "ab\xf5\x93r"})
    EXPECT_EQ(utf8_prefix(text), 2u) << text;
}

TEST(Terminal, ShowsNoControlCharacters) {
  EXPECT_EQ(printable_text("a\x1b[2Jb\r\nc\td\x7f"), "a?[2Jb?\nc\td?");
  EXPECT_EQ(printable_text("\xc2\x9bx\xff"), "?x?") << "CSI as one character, and a stray byte";
  EXPECT_EQ(printable_text("\u6a21\u578b"), "\u6a21\u578b");
  EXPECT_EQ(printable_text("a\u202egnp.exe\u2066\u2069b\u2028c"), "a?gnp.exe??b?c") << "what turns the order of text";
  EXPECT_EQ(printable_text("\u05e9\u200f \u0639\u200d"), "\u05e9\u200f \u0639\u200d")
      << "marks of Hebrew and Arabic text";
}

TEST(Terminal, WrapsAtSpaces) {
  EXPECT_EQ(wrapped("aa bb cc", 8), "aa bb cc");
  EXPECT_EQ(wrapped("aa bb cc", 7), "aa bb\n  cc");
  EXPECT_EQ(wrapped("  aa   bb cc", 9), "  aa   bb\n    cc");
  EXPECT_EQ(wrapped("x\n\naa bb cc\n", 5), "x\n\naa bb\n  cc\n");
  EXPECT_EQ(wrapped("memory 52.2 MB, planned 5", 12), "memory\n  52.2 MB,\n  planned 5") << "a number keeps its unit";
  EXPECT_EQ(wrapped("in 12 steps", 6), "in 12\n  steps");
  EXPECT_EQ(wrapped("in /a/long/path it", 6), "in\n  /a/long/path\n  it") << "a word stays whole";
  EXPECT_EQ(wrapped("\u6a21\u578b \u6a21\u578b", 8), "\u6a21\u578b\n  \u6a21\u578b");
}

TEST(Terminal, FillsLinesWithWords) {
  EXPECT_EQ(filled("aa bb\ncc", 8), "aa bb cc\n");
  EXPECT_EQ(filled("aa bb\ncc", 7, 1), " aa bb\n cc\n");
  EXPECT_EQ(filled("aa\n\nbb", 80), "aa\n\nbb\n") << "paragraphs stay apart";
  EXPECT_EQ(filled("a one|two|three b", 9), "a\none|two|\nthree b\n");
  EXPECT_EQ(filled("in /a/long/path it", 6), "in\n/a/long/path\nit\n") << "a word without a break stays whole";
  EXPECT_EQ(filled("takes 52.2 MB", 10), "takes\n52.2 MB\n") << "a number keeps its unit";
  EXPECT_EQ(filled("", 10), "");
}

}  // namespace
}  // namespace so
