#include "checkpoint/rope_extension.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "model/config.h"
#include "model/rope.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/training_run.h"

namespace so {
namespace {

using nlohmann::json;

RopeExtension extension_of(const std::string& name) {
  for (const auto& [value, text] : EnumNames<RopeExtension>::list)
    if (text == name) return value;
  ADD_FAILURE() << name;
  return {};
}

const json& extended_cases() {
  static const json all = json::parse(read_text_file(test::fixtures() + "/rope/extended.json", 16 << 20));
  return all.at("cases");
}

RopeRequest request_of(const json& c) {
  RopeRequest request{extension_of(c.at("rope_scaling")), std::nullopt, c.at("max_length")};
  if (c.contains("rope_factor")) request.factor = c.at("rope_factor").get<double>();
  return request;
}

// A config.json as the cases' base, with other values.
std::string config_with(const json& more) {
  json config = extended_cases()[0].at("config");
  config.update(more);
  return config.dump();
}

TEST(RopeExtension, ConfigSaysWhatTransformersReads) {
  for (const json& c : extended_cases()) {
    const std::string text = extended_config(c.at("config").dump(), "config.json", request_of(c));
    EXPECT_EQ(json::parse(text), c.at("extended")) << c.at("name");
    EXPECT_EQ(read_decoder_spec(text, "config.json").max_positions,
              c.at("expected").at("max_position_embeddings").get<std::int64_t>())
        << c.at("name");
  }
}

TEST(RopeExtension, RotationIsThatOfTransformers) {
  constexpr double u = 0x1p-24;  // fp32's unit roundoff
  for (const json& c : extended_cases()) {
    const json& expected = c.at("expected");
    const DecoderSpec spec = read_decoder_spec(c.at("extended").dump(), "config.json");
    const auto frequencies = expected.at("frequencies").get<std::vector<double>>();
    const std::vector<float> own = rope_frequencies(spec.rope, spec.max_positions);
    ASSERT_EQ(own.size(), frequencies.size()) << c.at("name");
    // The power's last bits differ between libraries, by some ulp; blending adds and cancels a few more.
    for (std::size_t i = 0; i < own.size(); ++i)
      EXPECT_NEAR(own[i], frequencies[i], 16 * u * frequencies[i]) << c.at("name") << ", pair " << i;
    EXPECT_NEAR(spec.rope.attention_factor, expected.at("attention_factor").get<double>(), 1e-12) << c.at("name");
    const auto positions = expected.at("positions").get<std::vector<std::int64_t>>();
    const std::vector<float> table = rope_table(spec.rope, positions.back() + 1);
    for (std::size_t p = 0; p < positions.size(); ++p)
      for (std::size_t i = 0; i < own.size(); ++i) {
        const auto row = static_cast<std::size_t>(positions[p]) * 2 * own.size();
        // A frequency's error grows with the position; the angle and the result are rounded.
        const double angle = static_cast<double>(positions[p]) * frequencies[i], tolerance = u * (18 * angle + 4);
        EXPECT_NEAR(table[row + i], expected.at("cos")[p][i].get<double>(), tolerance) << c.at("name") << " " << p;
        EXPECT_NEAR(table[row + own.size() + i], expected.at("sin")[p][i].get<double>(), tolerance)
            << c.at("name") << " " << p;
      }
  }
}

TEST(RopeExtension, DynamicFrequenciesBeyondItsPositions) {
  // The published change of the base, for a sequence of so many tokens: theta (f n / N - (f - 1))^(d / (d - 2)).
  const RopeSpec rope{
      .theta = 10000, .rotary_dim = 64, .scaling = RopeScaling::dynamic, .original_positions = 4096, .factor = 4};
  const RopeSpec plain{.theta = 10000, .rotary_dim = 64};
  EXPECT_EQ(rope_frequencies(rope, 4096), rope_frequencies(plain, 4096));
  const double base = 10000 * std::pow(4.0 * 16384 / 4096 - 3, 64.0 / 62);
  const std::vector<float> own = rope_frequencies(rope, 16384);
  for (std::size_t i = 0; i < own.size(); ++i) {
    const double expected = std::pow(base, -2.0 * static_cast<double>(i) / 64);
    EXPECT_NEAR(own[i], expected, 32 * 0x1p-24 * expected) << i;
  }
}

TEST(RopeExtension, KeepsAFileThatNothingIsAskedOf) {
  const std::string text = "{ \"model_max_length\": 1000000000000000019884624838656 }";
  EXPECT_EQ(extended_config(text, "config.json", {}), text);
}

TEST(RopeExtension, KeepsNumbersThatNoParserTakes) {
  json config = extended_cases()[0].at("config");
  std::string text = config.dump();
  text.insert(1, "\"longest\": 1000000000000000019884624838656, ");
  const std::string made = extended_config(text, "config.json", {RopeExtension::yarn, 2.0, 0});
  EXPECT_NE(made.find("1000000000000000019884624838656"), std::string::npos);
  EXPECT_EQ(read_decoder_spec(made, "config.json").max_positions, 81920);
}

void expect_no_extension(const std::string& config, const RopeRequest& request,
                         const std::vector<std::string>& needles) {
  test::expect_in(test::refusal([&] { extended_config(config, "config.json", request); }), needles);
}

TEST(RopeExtension, RefusesWhatIsNotAsItSeems) {
  const std::string plain = config_with(json::object());
  expect_no_extension(plain, {RopeExtension::automatic, 2.0, 0}, {"--rope_factor 2", "add --rope_scaling"});
  expect_no_extension(plain, {RopeExtension::yarn, std::nullopt, 4096},
                      {"beyond the 40960 positions", "--rope_factor"});
  expect_no_extension(plain, {RopeExtension::yarn, 1.0, 4096}, {"--rope_factor 1", "more than 1"});
  expect_no_extension(plain, {RopeExtension::linear, 2.0, 100000}, {"reaches 81920", "100000", "at least 3"});
  expect_no_extension(plain, {RopeExtension::linear, 1e6, 4096}, {"more than any model has"});
  expect_no_extension(plain, {RopeExtension::none, 2.0, 100000}, {"--rope_factor 2", "keeps them"});
  expect_no_extension(plain, {RopeExtension::none, std::nullopt, 4096}, {"--max_length", "40960"});
  expect_no_extension(plain, {RopeExtension::dynamic, 2.0, 50000}, {"dynamic", "computed before", "yarn or linear"});

  const json scaled{{"rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "linear"}, {"factor", 4}}}};
  for (const RopeExtension kind : {RopeExtension::yarn, RopeExtension::linear, RopeExtension::dynamic})
    expect_no_extension(config_with(scaled), {kind, 2.0, 4096}, {"'linear' already", "--rope_scaling none"});
  EXPECT_EQ(read_decoder_spec(extended_config(config_with(scaled), "config.json", {RopeExtension::none, {}, 50000}),
                              "config.json")
                .max_positions,
            50000);
  const json dynamic{{"rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "dynamic"}, {"factor", 4}}}};
  expect_no_extension(config_with(dynamic), {RopeExtension::none, std::nullopt, 50000}, {"'dynamic'", "depend on"});
}

TEST(RopeExtension, RefusesFamiliesWithRotationsOfTheirOwn) {
  const auto model = [](const char* name) {
    return read_text_file(test::model_fixture(name) / "model" / "config.json", 1 << 20);
  };
  expect_no_extension(model("phi3-long"), {RopeExtension::none, std::nullopt, 100000}, {"'longrope'", "depend on"});
  expect_no_extension(model("phi3-long"), {RopeExtension::yarn, 2.0, 0}, {"'longrope' already"});
  expect_no_extension(model("phi3-v4"), {RopeExtension::yarn, 2.0, 0}, {"Phi3ForCausalLM", "use linear"});
  expect_no_extension(model("olmo3"), {RopeExtension::linear, 2.0, 0}, {"--rope_scaling linear"});
}

}  // namespace
}  // namespace so
