#include "base/option_table.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <random>
#include <sstream>

namespace so {

enum class Colour : std::uint8_t { red, green };
template <>
struct EnumNames<Colour> {
  static constexpr std::pair<Colour, std::string_view> list[] = {{Colour::red, "red"}, {Colour::green, "green"}};
};

namespace {

struct Sample {
  std::string path;
  std::string note;
  bool flag = true;
  int count = 3;
  std::int64_t limit = -1;
  double rate = 1e-5;
  Colour colour = Colour::green;
};

OptionTable<Sample> make_table() {
  OptionTable<Sample> t;
  t.group("First");
  t.add("path", &Sample::path, "A path").metavar("DIR").required();
  t.add("note", &Sample::note, "A remark").when_unset("nothing to remark");
  t.add("flag", &Sample::flag, "A flag").affects_results();
  t.group("Second");
  t.add("count", &Sample::count, "A count").unit("rows").at_least(1).at_most(10).affects_results();
  t.add("limit", &Sample::limit, "A limit").at_least(1).or_else(std::int64_t{-1}, "no limit");
  t.add("rate", &Sample::rate, "A rate").above(0).below(1).affects_results();
  t.add("colour", &Sample::colour, "A colour").affects_results();
  return t;
}

const OptionTable<Sample>& table() {
  static const OptionTable<Sample> instance = make_table();
  return instance;
}

OptionValue parse(const char* name, std::string_view text) {
  return parse_value(table().at(name), text, std::string("--") + name);
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Options, ReadsDefaultsFromTheMembers) {
  EXPECT_EQ(table().at("path").default_value, OptionValue(std::string()));
  EXPECT_EQ(table().at("flag").default_value, OptionValue(true));
  EXPECT_EQ(table().at("count").default_value, OptionValue(std::int64_t{3}));
  EXPECT_EQ(table().at("rate").default_value, OptionValue(1e-5));
  EXPECT_EQ(table().at("colour").default_value, OptionValue(std::string("green")));
}

TEST(Options, WritesEveryKindOfMember) {
  Sample s;
  const OptionsRef ref = table().ref(s);
  for (const auto& [name, text] : {std::pair{"path", "x y"},
                                   {"flag", "false"},
                                   {"count", "7"},
                                   {"limit", "5000000000"},
                                   {"rate", "0.25"},
                                   {"colour", "red"}})
    ref.set(table().at(name), parse(name, text));
  EXPECT_EQ(s.path, "x y");
  EXPECT_FALSE(s.flag);
  EXPECT_EQ(s.count, 7);
  EXPECT_EQ(s.limit, 5000000000);
  EXPECT_EQ(s.rate, 0.25);
  EXPECT_EQ(s.colour, Colour::red);
}

TEST(Options, AcceptsBoundsAndSpecialValues) {
  EXPECT_EQ(parse("count", "1"), OptionValue(std::int64_t{1}));
  EXPECT_EQ(parse("count", "10"), OptionValue(std::int64_t{10}));
  EXPECT_EQ(parse("count", "1e1"), OptionValue(std::int64_t{10}));
  EXPECT_EQ(parse("limit", "-1"), OptionValue(std::int64_t{-1}));
  EXPECT_EQ(parse("limit", "9223372036854775807"), OptionValue(std::numeric_limits<std::int64_t>::max()));
}

TEST(Options, RefusesWithTheReason) {
  const auto refused = [](const char* name, std::string_view text) { return error_of([&] { parse(name, text); }); };
  EXPECT_EQ(refused("flag", "yes"), "--flag: \"yes\" is neither true nor false");
  EXPECT_EQ(refused("count", "0"), "--count: 0 is out of range; it must be a whole number >= 1 and <= 10");
  EXPECT_EQ(refused("count", "11"), "--count: 11 is out of range; it must be a whole number >= 1 and <= 10");
  EXPECT_EQ(refused("count", "1.5"), "--count: \"1.5\" is not a whole number");
  EXPECT_EQ(refused("count", "4x"), "--count: \"4x\" is not a whole number");
  EXPECT_EQ(refused("count", ""), "--count: \"\" is not a whole number");
  EXPECT_EQ(refused("count", "99999999999"),
            "--count: 99999999999 is out of range; it must be a whole number >= 1 and <= 10");
  EXPECT_EQ(refused("limit", "0"), "--limit: 0 is out of range; it must be a whole number >= 1 (-1: no limit)");
  EXPECT_EQ(refused("limit", "1e19"), "--limit: \"1e+19\" is not a number of 64 bits");
  EXPECT_EQ(refused("rate", "0"), "--rate: 0 is out of range; it must be a number > 0 and < 1");
  EXPECT_EQ(refused("rate", "1"), "--rate: 1 is out of range; it must be a number > 0 and < 1");
  EXPECT_EQ(refused("rate", "nan"), "--rate: \"nan\" is not a number");
  EXPECT_EQ(refused("rate", "inf"), "--rate: \"inf\" is not a number");
  EXPECT_EQ(refused("rate", "1e999"), "--rate: \"1e999\" is not a number");
  EXPECT_EQ(refused("colour", "gren"), "--colour: \"gren\" is not one of red, green; did you mean green?");
  EXPECT_EQ(refused("colour", "blue"), "--colour: \"blue\" is not one of red, green");
}

TEST(Options, RefusesValuesOfAnotherType) {
  const auto refused = [](const char* name, OptionValue v) {
    return error_of([&] { check_value(table().at(name), std::move(v), "f.json: k"); });
  };
  EXPECT_EQ(refused("flag", std::int64_t{1}), "f.json: k: \"1\" is not true or false");
  EXPECT_EQ(refused("count", true), "f.json: k: \"true\" is not a whole number");
  EXPECT_EQ(refused("count", 2.5), "f.json: k: \"2.5\" is not a whole number");
  EXPECT_EQ(refused("rate", std::string("0.1")), "f.json: k: \"0.1\" is not a number");
  EXPECT_EQ(refused("path", 1.0), "f.json: k: \"1\" is not a text");
  EXPECT_EQ(refused("colour", true), "f.json: k: \"true\" is not one of red, green");
}

// The text of a real must read back as the same bits: the settings log and the checkpoint record rely on it.
TEST(Options, RealsSurviveTheirText) {
  std::mt19937_64 random(1);
  const OptionSpec spec = [] {
    OptionSpec s;
    s.kind = OptionKind::real;
    return s;
  }();
  for (int i = 0; i < 2000; ++i) {
    const double x = std::bit_cast<double>(random());
    if (!std::isfinite(x)) continue;
    EXPECT_EQ(std::get<double>(parse_value(spec, to_string(OptionValue(x)), "x")), x);
  }
}

TEST(Options, CommandLineBeatsFileInEitherOrder) {
  for (const bool file_first : {true, false}) {
    Sample s;
    OptionOrigins origins;
    const OptionSpec& count = table().at("count");
    const auto file = [&] { assign(table().ref(s), origins, count, std::int64_t{5}, Origin::file, "f.json: count"); };
    const auto line = [&] { assign(table().ref(s), origins, count, std::int64_t{7}, Origin::command_line, ""); };
    if (file_first) file();
    line();
    if (!file_first) file();
    EXPECT_EQ(s.count, 7);
    EXPECT_EQ(origins.of("count").origin, Origin::command_line);
    EXPECT_EQ(origins.of("count").overridden, "f.json: count says 5");
    EXPECT_NE(settings_log(table().view(s), origins)
                  .find("7 rows               command line; overrides: f.json: count says 5"),
              std::string::npos)
        << settings_log(table().view(s), origins);
  }
}

TEST(Options, EqualValuesAreNoConflict) {
  Sample s;
  OptionOrigins origins;
  assign(table().ref(s), origins, table().at("count"), std::int64_t{5}, Origin::file, "f.json: count");
  assign(table().ref(s), origins, table().at("count"), std::int64_t{5}, Origin::command_line, "");
  EXPECT_EQ(origins.of("count").overridden, "");
  EXPECT_EQ(origins.of("rate").origin, Origin::built_in);
  EXPECT_FALSE(origins.given("rate"));
}

std::vector<std::string> difference_texts(const Sample& now, const std::string& record) {
  std::vector<std::string> texts;
  for (const OptionDifference& difference : result_differences(table().view(now), record, "record"))
    texts.push_back(difference.text);
  return texts;
}

TEST(Options, RecordComparesOnlyWhatAffectsResults) {
  Sample then;
  then.path = "a";
  const std::string record = to_json(table().view(then));
  Sample now = then;
  EXPECT_TRUE(result_differences(table().view(now), record, "record").empty());
  now.path = "b";
  now.limit = 9;
  EXPECT_TRUE(result_differences(table().view(now), record, "record").empty());
  now.rate = 2e-5;
  now.colour = Colour::red;
  const std::vector<std::string> expected = {"rate: 1e-05 recorded, 2e-05 now",
                                             "colour: \"green\" recorded, \"red\" now"};
  EXPECT_EQ(difference_texts(now, record), expected);
}

TEST(Options, RecordOfAnOlderVersionHasDefaults) {
  Sample now;
  EXPECT_TRUE(result_differences(table().view(now), R"({"rate": 1e-5})", "record").empty());
  now.flag = false;
  const std::vector<std::string> expected = {"flag: true recorded, false now"};
  EXPECT_EQ(difference_texts(now, R"({"rate": 1e-5})"), expected);
}

TEST(Options, DamagedRecordIsAnError) {
  const Sample s;
  for (const char* bad : {"", "[]", "{", "{\"rate\":}", "3"})
    EXPECT_EQ(error_of([&] { result_differences(table().view(s), bad, "ckpt/options.json"); }),
              "ckpt/options.json: the record of options is not a JSON object")
        << bad;
}

TEST(Options, RecordSurvivesPathsThatAreNotUtf8) {
  Sample s;
  s.path = "dir\xff";
  EXPECT_TRUE(result_differences(table().view(s), to_json(table().view(s)), "record").empty());
}

TEST(Options, NamesEveryMissingRequiredOption) {
  Sample s;
  EXPECT_EQ(error_of([&] { check_required(table().view(s)); }), "missing --path DIR");
  s.path = "x";
  EXPECT_EQ(error_of([&] { check_required(table().view(s)); }), "no error");
}

TEST(Options, ANameDeclaredTwiceIsABug) {
  OptionTable<Sample> t;
  t.add("count", &Sample::count, "A count");
  EXPECT_THROW(t.add("count", &Sample::limit, "A count"), Bug);
  EXPECT_THROW(t.at("none"), Bug);
}

TEST(Options, HelpShowsEveryOptionOnShortLines) {
  for (const std::size_t columns : {40u, 80u, 100u, 120u}) {
    std::istringstream lines(help_text(table(), columns));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), columns) << line;
  }
  const std::string help = help_text(table(), 120);
  for (const OptionSpec& spec : table().specs()) EXPECT_NE(help.find("--" + spec.name), std::string::npos) << spec.name;
  EXPECT_NE(help.find("First:\n  --path DIR"), std::string::npos) << help;
  EXPECT_NE(help.find("A count (rows; >= 1 and <= 10; default 3)"), std::string::npos) << help;
  EXPECT_NE(help.find("A limit (>= 1; -1: no limit; default -1)"), std::string::npos) << help;
  EXPECT_NE(help.find("A remark (default nothing to remark)"), std::string::npos) << help;
}

// Distances by hand: one slip is suggested, another word is not.
TEST(Options, SuggestsTheNearestName) {
  const std::vector<std::string> names = {"batch_size", "max_length", "max_steps", "lr", "warmup"};
  EXPECT_EQ(nearest_name("batch-size", names), "batch_size");  // '-' counts as '_'
  EXPECT_EQ(nearest_name("Batch_Size", names), "batch_size");  // nor does case count
  EXPECT_EQ(nearest_name("batchsize", names), "batch_size");   // 1 deletion
  EXPECT_EQ(nearest_name("bacth_size", names), "batch_size");  // 1 swap
  EXPECT_EQ(nearest_name("max_step", names), "max_steps");     // 1, against 4 to max_length
  EXPECT_EQ(nearest_name("rl", names), "lr");                  // 1 swap
  EXPECT_EQ(nearest_name("temperature", names), "");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'x'), names), "");
  EXPECT_EQ(nearest_name("x", {}), "");
}

TEST(Options, QuotesTextOnOneLine) {
  EXPECT_EQ(in_quotes("a\"b\\c"), "\"a\\\"b\\\\c\"");
  EXPECT_EQ(in_quotes("a\nb\x01"), "\"a\\x0ab\\x01\"");
  EXPECT_EQ(in_quotes(std::string(81, 'x')), "\"" + std::string(80, 'x') + "\"...");
}

}  // namespace
}  // namespace so
