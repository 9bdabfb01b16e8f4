// YAML as its specification has it: what is an error there is one here, with its line, and what is printed reads back.
#include "io/yaml_document.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "support/errors.h"

namespace so {
namespace {

std::string yaml_refusal_of(std::string_view text) {
  return test::refusal([&] { read_yaml(text, "x.yaml"); });
}

struct InvalidYaml {
  std::string_view text;
  int line;
};

// The kinds of errors that yaml-test-suite has, in words of a run. Of the first ones another reader makes settings.
TEST(YamlDocument, InvalidYamlIsRefusedWithItsLine) {
  const InvalidYaml cases[] = {{"model: m\noutput_dir: \"out\nlr: 1e-3\nbatch_size: 2\n", 2},
                               {"model: m\noutput_dir: 'out\nlr: 1e-3\nbatch_size: 2\n", 2},
                               {"model: \"m\nlr: 1e-3\ndata: \"d\nbatch_size: 2\n", 2},
                               {"model: m\npacking\n", 2},
                               {"model: m\npacking\nlr: 1\n", 2},
                               {"packing\nmodel: m\n", 2},
                               {"model: m\nlr:1e-3\n", 2},
                               {"data: [a, b\nlr: 1\n", 2},
                               {"{model: m, lr: 1\n", 2},
                               {"{model: m,\nlr: 1\n", 3},
                               {"{model: m}}\n", 1},
                               {"{model: m}\nlr: 1\n", 2},
                               {"model: \"m\" x\n", 1},
                               {"model: 'it's'\n", 1},
                               {"model: m\n\tlr: 1\n", 1},
                               {"data:\n\t- a\n", 2},
                               {"model: a: b\n", 1},
                               {"model: %x\n", 1},
                               {"model: @x\n", 1},
                               {"model: `x`\n", 1},
                               {"model: &\n", 1},
                               {"model: ! x: y\n", 1},
                               {"model: |x\n a\n", 1},
                               {"model: \"\\q\"\n", 1},
                               {"model: \"\\xZZ\"\n", 1},
                               {"model: \"\\uD800\"\n", 1},
                               {"model: a\x01"
                                "b\n",
                                1},
                               {"model: m\n  lr: 1\n", 2},
                               {"  model: m\nlr: 1\n", 2},
                               {"model: m\n- a\n", 2},
                               {"data:\n- a\nb\nlr: 1\n", 3},
                               {"model: m\n  more\nlr: 1\n  2: 3\n", 4},
                               {"data:\n-a\n-b\n", 2},
                               {"data: [a,b]#c\n", 1},
                               {"model: \"m\"#c\n", 1},
                               {"data: [a,,b]\n", 1},
                               {"data: [,a]\n", 1},
                               {"data: [a] [b]\n", 1},
                               {"data: [\"a, b]\nlr: 1\n", 1},
                               {"data:\n  - a\n - b\n", 3},
                               {"model: m\nlr: \"\n", 2},
                               {"model: m\n\"lr\n", 2},
                               {"model: m\n'lr': 1\n'seed\n", 3},
                               {"model: m\n\"packing\"\n", 2},
                               {"a: &x 1\n*x\n", 2},
                               {"model: m\n\xef\xbb\xbf"
                                "lr: 1\n",
                                2},
                               {"model: m\nlr: 1:\n", 2},
                               {"lr:\n  shuffle\nwrong\n", 3},
                               {"this\n is\n  wrong: x\n", 3},
                               {"--- |0\n", 1},
                               {"--- |10\n", 1},
                               {"---\nmodel: four\n... wrong\n", 3},
                               {"---\na:\n\tb:\n\t\tc: four\n", 3},
                               {"---\n[ a, b, c ] ]\n", 2},
                               {"model:\n   - ok\n   - also ok\n  - wrong\n", 4},
                               {"resume: &place1\n  &k1 lr: warm\npacking: &place2\n  &v2 cold\n", 4},
                               {"---\n\"\\.\"\n", 2},
                               {"lines text: >\n \n  \n   \n wrong\n", 4},
                               {"---\n\"\n---\n\"\n", 2},
                               {"model: - a\n     - b\n", 1},
                               {"---\nx: { y: z }in: valid\n", 2},
                               {"---\n[ [ a, b, c ]\n", 3},
                               {"model:\n - shuffle\n - freeze\n wrong\n", 4},
                               {"\"a\\nb\": 1\n\"c\n d\": 1\n", 2},
                               {"resume:\n  lr: warm\npacking\n", 3},
                               {"model: part1\n#  xxx\n  part2\n", 3},
                               {"---\ndata: [a,\nb,\nc]\n", 3},
                               {"model:\n - alpaca\n - dolly\nwrong\n", 4},
                               {"!lr \"shuffle\"\n%TAG ! tag:example.com,2000:app/\n---\n!lr \"shuffle\"\n", 2},
                               {"---\n[ a, b, c, ]#wrong\n", 2},
                               {"--- lr: four1\n    seed: four2\n", 1},
                               {"---\n[ , a, b, c ]\n", 2},
                               {"%YAML 1.2\n", 2},
                               {"--- \"a\n... x\nb\"\n", 1},
                               {"%YAML 1.2\n...\n", 2},
                               {"- alpaca\n- dolly\nwrong: x\n", 3},
                               {"---\nbare: a\n       b # end of text\n       c\n", 4},
                               {"part1  # comment\npart2\n", 2},
                               {"[23\n]: 42\n", 2},
                               {"model: [ part1\n#  xxx\n  part2 ]\n", 3},
                               {"---\nmodel: \"missing closing quote\n", 2},
                               {"---\n[ a, b, c, , ]\n", 2},
                               {"---\n[ a, b, c,#wrong\n]\n", 2},
                               {"--- &mark a: b\n", 1},
                               {"'a\\nb': 1\n'c\n d': 1\n", 2},
                               {"---\n[ model\n  : four ]\n", 3},
                               {"lr: \"shuffle\n\tfreeze\"\n", 2},
                               {"lr:\n  a: 1\n  \tb: 2\n", 2},
                               {"model:\n  ok: 1\n wrong: 2\n", 3},
                               {"---\ntext1 # comment\n%YAML 1.2\n---\ntext2\n", 3},
                               {"k1: v1\n k2: v2\n", 2},
                               {"---\n- [-, -]\n", 2},
                               {"a\\nb: 1\nc\n d: 1\n", 2},
                               {"---\nseq:\n&mark\n- a\n- b\n", 3},
                               {"model: four\nthis is #not a: model\n", 2},
                               {"- alpaca\n&place\n- dolly\n", 2},
                               {"model: &x\n!!map\n  a: b\n", 2},
                               {"%YAML 1.2 lr\n---\n", 1},
                               {"---\ndouble: \"quote \\' text\"\n", 2},
                               {"model:\n  part1 part2\n  no: model\n", 3},
                               {"- - \"shuffle\nshuffle\": x\n", 2},
                               {"lr: \"quote1\"\nseed: \"quote2\" no model: nor four\ndtype: \"quote3\"\n", 2},
                               {"---\n[\nlist part\n]\nwrong part\n", 5},
                               {"---\n!wrong{}tag text\n", 2},
                               {"%YAML 1.1#...\n---\n", 1},
                               {"%YAML 1.2\n---\n%YAML 1.2\n---\n", 3},
                               {"map:\n  lr: \"quote1\"\n seed: \"in between\"\n", 3},
                               {"[\n--- ,\n...\n]\n", 2},
                               {"---\n- { y: z }- wrong\n", 2},
                               {"lr: \"quote1\"\nseed: \"quote2\" trailing content\ndtype: \"quote3\"\n", 2},
                               {"---\nquote: \"a\nb\nc\"\n", 3},
                               {"---\nmodel: four\n%YAML 1.2\n---\n", 3},
                               {"---\n'\n...\n'\n", 2},
                               {"---\nfolded: > first line\n  second line\n", 2},
                               {"empty lines text: >\n \n  \n   \n # comment\n", 4},
                               {"%YAML 1.2\n%YAML 1.2\n---\n", 2},
                               {"lr: &a four\nseed: &b *a\n", 2},
                               {"model: \"four\"# wrong comment\n", 1},
                               {"lr: &alias four1\n&b *alias : four2\n", 2},
                               {"&mark - list entry\n", 1},
                               {"---\n{\n lr: 1\n shuffle: 2 }\n", 4},
                               {"- alpaca\n- dolly\nwrong\n", 3},
                               {"map:\n  lr: \"quote1\"\n   seed: \"in between\"\n", 3},
                               {"- !!str, xxx\n", 1},
                               {"k: {\nk\n:\nv\n}\n", 2},
                               {"---\nlines text: |\n     \n  wider\n  narrow\n", 3},
                               {"lines: ># comment\n  text\n", 1},
                               {"lr: |\n\t\nshuffle: 1\n", 1},
                               {"- [\n\tlr,\n lr\n ]\n", 2},
                               {"-\t-\n", 1},
                               {"- \t-\n", 1},
                               {"?\t-\n", 1},
                               {"? -\n:\t-\n", 2},
                               {"?\tmodel:\n", 1},
                               {"? model:\n:\tmodel:\n", 2},
                               {"[-]\n", 1},
                               {"a: b: c: d\n", 1},
                               {"---\na: 'b': c\n", 2},
                               {"- model: four\n - alpaca\n", 2},
                               {"[ \"model\"\n  :four ]\n", 2}

  };
  for (const InvalidYaml& invalid : cases) {
    SCOPED_TRACE(invalid.text);
    const std::string message = yaml_refusal_of(invalid.text);
    EXPECT_EQ(message.substr(0, message.find(':', 7)), "x.yaml:" + std::to_string(invalid.line)) << message;
    EXPECT_NE(message.find(": not YAML: "), message.npos) << message;
    EXPECT_EQ(message.find('\n'), message.npos);
  }
  EXPECT_EQ(yaml_refusal_of(std::string_view("lr: 1\nmodel: a\0b\n", 18)),
            "x.yaml:2: not YAML: control characters are not allowed");
}

TEST(YamlDocument, WhatAPersonCanMendIsNamed) {
  EXPECT_EQ(yaml_refusal_of("model: m\noutput_dir: \"out\nlr: 1e-3\n"),
            "x.yaml:2: not YAML: the quote that opens here is not closed");
  EXPECT_EQ(yaml_refusal_of("model: 'm\nlr: 1e-3\ndata: 'd'\n"),
            "x.yaml:2: not YAML: this line belongs to the text in quotes that begins in line 1, and must be indented "
            "more; is a quote missing there?");
  EXPECT_EQ(yaml_refusal_of("model: m\npacking\n"),
            "x.yaml:2: not YAML: a line without \": \"; an option is its name and its value, as in \"lr: 2e-5\"");
  EXPECT_EQ(yaml_refusal_of("lr: 1\n---\nlr: 2"),
            "x.yaml:2: one document is read, and there is another behind \"---\"");
  EXPECT_EQ(yaml_refusal_of("lr: *a\n"), "x.yaml:1: *a names an anchor, and no &a stands before it");
  EXPECT_EQ(yaml_refusal_of("data: &a [*a]\n"), "x.yaml:1: *a names an anchor, and no &a stands before it");
  for (const char* deep : {"[", "- ", "{a: ", "? "}) {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += deep;
    EXPECT_EQ(yaml_refusal_of(text), "x.yaml:1: not YAML: nested deeper than 32 levels") << deep;
  }
  // Of these libyaml would make line breaks, and a setting of what stands behind them.
  EXPECT_EQ(yaml_refusal_of("data: a\xc2\x85lr: 5\n"),
            "x.yaml:1: not YAML: U+0085 would end the line in YAML 1.1; in double quotes write it as \"\\u0085\"");
  EXPECT_NE(yaml_refusal_of("a: 1\ndata: a\xe2\x80\xa8lr: 5\n").find("x.yaml:2: not YAML: U+2028"), std::string::npos);
}

TEST(YamlDocument, ReadsNodes) {
  const YamlDocument document = read_yaml(
      "# a\n&m\nplain: a b\n  c\nquoted: !!str \"x\\ty\"\nfolded: >-\n  a\n  b\n\n  c\nkept: |\n  # d\nlist: &l\n- 1\n"
      "- [2, {k: v}]\nsame: *l\nflow: [\n  a, # first\n# second\n  b\n]\n? explicit\n: 5\n",
      "x.yaml");
  ASSERT_FALSE(document.is_empty);
  const YamlNode& root = document.at(document.root);
  ASSERT_EQ(root.kind, YamlNode::Kind::mapping);
  ASSERT_EQ(root.children.size(), 16u);
  const auto value = [&](std::size_t i) -> const YamlNode& { return document.at(root.children.at(2 * i + 1)); };
  EXPECT_EQ(value(0).text, "a b c");
  EXPECT_TRUE(value(0).is_plain);
  EXPECT_EQ(value(1).text, "x\ty");
  EXPECT_EQ(value(1).tag, "tag:yaml.org,2002:str");
  EXPECT_FALSE(value(1).is_plain);
  EXPECT_EQ(value(2).text, "a b\nc");
  EXPECT_EQ(value(3).text, "# d\n");
  EXPECT_EQ(&value(4), &value(5));
  EXPECT_EQ(root.children.at(9).line, 13);
  EXPECT_EQ(root.children.at(11).line, 16);
  ASSERT_EQ(value(4).children.size(), 2u);
  EXPECT_EQ(document.at(value(4).children[1]).children.size(), 2u);
  EXPECT_EQ(value(6).children.size(), 2u);
  EXPECT_EQ(value(7).text, "5");
  for (const char* empty : {"", "# a\n", "\xef\xbb\xbf"}) EXPECT_TRUE(read_yaml(empty, "x.yaml").is_empty);
}

TEST(YamlDocument, PrintedScalarsReadBack) {
  std::vector<std::string> texts = {"",
                                    "null",
                                    "~",
                                    "true",
                                    " ",
                                    "-",
                                    "*a",
                                    "a #b",
                                    "a: b",
                                    "\xc2\x85",
                                    "1e5",
                                    "\xe2\x80\xa8",
                                    "%x",
                                    "\xef\xbb\xbf",
                                    "\xef\xbf\xbe",
                                    "\xc2\x9f\xc2\xa0",
                                    "a\nb: \n",
                                    "\xf0\x9f\x98\x80",
                                    "C:\\x",
                                    "it's \"q\"",
                                    "/a/b.jsonl",
                                    "a=0.1,b.*=2"};
  for (char c = 0; c >= 0; ++c) {
    texts.push_back(std::string(1, c));
    texts.push_back("a" + std::string(1, c) + "b");
    if (c == 0x7f) break;
  }
  for (const std::string& text : texts) {
    SCOPED_TRACE(yaml_scalar(text));
    const YamlDocument document = read_yaml("k: " + yaml_scalar(text) + "\n", "x.yaml");
    EXPECT_EQ(document.at(document.at(document.root).children.at(1)).text, text);
  }
}

}  // namespace
}  // namespace so
