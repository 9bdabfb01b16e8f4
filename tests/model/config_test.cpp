#include "model/config.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/presets.h"
#include "support/files.h"

namespace so {
namespace {

using nlohmann::json;

DecoderSpec read(const json& config) { return read_decoder_spec(config.dump(), "config.json"); }

// A config with every key that must be there and nothing else.
json smallest(const char* architecture = "LlamaForCausalLM") {
  return {{"architectures", {architecture}}, {"vocab_size", 100},       {"hidden_size", 32},
          {"num_hidden_layers", 2},          {"intermediate_size", 48}, {"num_attention_heads", 4},
          {"max_position_embeddings", 64}};
}

json smallest_qwen3() {
  json config = smallest("Qwen3ForCausalLM");
  config["num_key_value_heads"] = 4;
  return config;
}

json with(const json& base, const json& changes) {
  json config = base;
  config.update(changes);
  return config;
}

json llama3_scaling() {
  return {{"rope_type", "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 32}};
}

// ---- What is read ----

TEST(Config, ReadsAPublishedLlama) {
  const DecoderSpec s = read_decoder_spec(resolve_config("llama-3.1-8b").text, "config.json");
  EXPECT_EQ(s.architecture, "LlamaForCausalLM");
  EXPECT_EQ(s.vocab, 128256);
  EXPECT_EQ(s.hidden, 4096);
  EXPECT_EQ(s.layers, 32);
  EXPECT_EQ(s.heads, 32);
  EXPECT_EQ(s.kv_heads, 8);
  EXPECT_EQ(s.head_dim, 128);  // hidden_size / num_attention_heads
  EXPECT_EQ(s.intermediate, 14336);
  EXPECT_EQ(s.max_positions, 131072);
  EXPECT_EQ(s.rms_epsilon, 1e-5f);
  EXPECT_FALSE(s.qk_norm);
  EXPECT_FALSE(s.qkv_bias || s.o_bias);
  EXPECT_FALSE(s.mlp_bias);
  EXPECT_FALSE(s.tied_embeddings);
  EXPECT_EQ(s.rope.theta, 500000);
  EXPECT_EQ(s.rope.rotary_dim, 128);
  EXPECT_EQ(s.rope.scaling, RopeScaling::llama3);
  EXPECT_EQ(s.rope.factor, 8);
  EXPECT_EQ(s.rope.low_freq_factor, 1);
  EXPECT_EQ(s.rope.high_freq_factor, 4);
  EXPECT_EQ(s.rope.original_positions, 8192);
  EXPECT_EQ(s.initializer_range, 0.02);
}

TEST(Config, ReadsAPublishedQwen3) {
  const DecoderSpec s = read_decoder_spec(resolve_config("qwen3-4b").text, "config.json");
  EXPECT_EQ(s.architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(s.head_dim, 128);  // not 2560 / 32
  EXPECT_TRUE(s.qk_norm);
  EXPECT_TRUE(s.tied_embeddings);
  EXPECT_EQ(s.rms_epsilon, 1e-6f);
  EXPECT_EQ(s.rope.theta, 1e6);
  EXPECT_EQ(s.rope.scaling, RopeScaling::none);
}

TEST(Config, WhatIsAbsentOrNullIsWhatTransformersTakesIt) {
  const json nothing = smallest();
  const json nulls = with(nothing, {{"num_key_value_heads", nullptr},
                                    {"head_dim", nullptr},
                                    {"rope_scaling", nullptr},
                                    {"rope_parameters", nullptr},
                                    {"attention_dropout", nullptr},
                                    {"quantization_config", nullptr},
                                    {"hidden_act", nullptr}});
  for (const json& config : {nothing, nulls}) {
    const DecoderSpec s = read(config);
    EXPECT_EQ(s.kv_heads, 4);
    EXPECT_EQ(s.head_dim, 8);
    EXPECT_EQ(s.rms_epsilon, 1e-6f);
    EXPECT_EQ(s.initializer_range, 0.02);
    EXPECT_EQ(s.rope.theta, 10000);
    EXPECT_EQ(s.rope.scaling, RopeScaling::none);
    EXPECT_FALSE(s.tied_embeddings);
  }
  EXPECT_EQ(read(smallest_qwen3()).head_dim, 128);
}

TEST(Config, ReadsBiasesAndTies) {
  const DecoderSpec s =
      read(with(smallest(), {{"attention_bias", true}, {"mlp_bias", true}, {"tie_word_embeddings", true}}));
  EXPECT_TRUE(s.qkv_bias && s.o_bias);
  EXPECT_TRUE(s.mlp_bias);
  EXPECT_TRUE(s.tied_embeddings);
}

TEST(Config, RotaryKeysOf4xAndOf5xReadAlike) {
  json five = llama3_scaling();
  five["rope_theta"] = 500.0;
  json old_type = llama3_scaling();
  old_type.erase("rope_type");
  old_type["type"] = "llama3";
  const std::vector<json> styles{
      {{"rope_theta", 500.0}, {"rope_scaling", llama3_scaling()}},  // 4.x
      {{"rope_theta", 500}, {"rope_scaling", old_type}},            // before "type" was renamed
      {{"rope_parameters", five}},                                  // 5.x
      {{"rope_theta", 7.0}, {"rope_parameters", five}},             // the inner one wins
      {{"rope_theta", 500.0}, {"rope_parameters", llama3_scaling()}},
      {{"rope_theta", 7.0}, {"rope_scaling", five}},
  };
  for (const json& style : styles) {
    const RopeSpec rope = read(with(smallest(), style)).rope;
    EXPECT_EQ(rope.theta, 500) << style;
    EXPECT_EQ(rope.scaling, RopeScaling::llama3) << style;
    EXPECT_EQ(rope.factor, 8) << style;
    EXPECT_EQ(rope.low_freq_factor, 1) << style;
    EXPECT_EQ(rope.high_freq_factor, 4) << style;
    EXPECT_EQ(rope.original_positions, 32) << style;
  }
  const std::vector<json> plain{{{"rope_theta", 500.0}},
                                {{"rope_theta", 500.0}, {"rope_scaling", {{"rope_type", "default"}}}},
                                {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 500.0}}}},
                                {{"rope_parameters", {{"rope_theta", 500.0}, {"partial_rotary_factor", 1.0}}}}};
  for (const json& style : plain) {
    const RopeSpec rope = read(with(smallest(), style)).rope;
    EXPECT_EQ(rope.theta, 500) << style;
    EXPECT_EQ(rope.scaling, RopeScaling::none) << style;
    EXPECT_EQ(rope.rotary_dim, 8) << style;
  }
}

// Keys that do not change the model are none of our business.
TEST(Config, UnknownKeysAreLeftAlone) {
  const json extra{{"use_cache", true},      {"pretraining_tp", 4},  {"a_key_of_the_future", {{"deep", json::array()}}},
                   {"attention_dropout", 0}, {"hidden_act", "silu"}, {"eos_token_id", json::array({1, 2})}};
  EXPECT_EQ(read(with(smallest(), extra)).hidden, 32);
  EXPECT_EQ(read(with(smallest_qwen3(), {{"use_sliding_window", false},
                                         {"sliding_window", 4096},
                                         {"layer_types", {"full_attention", "full_attention"}}}))
                .layers,
            2);
}

// ---- What is refused: one line that names the file, the key, and why ----

std::string refusal_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  } catch (const std::exception& other) {
    ADD_FAILURE() << "not an Error: " << other.what();
    return {};
  }
  ADD_FAILURE() << "not refused";
  return {};
}

void expect_refused(const json& config, const std::string& key, const std::string& why) {
  const std::string message = refusal_of([&] { read(config); });
  EXPECT_EQ(message.find("config.json: " + key + ": "), 0u) << message;
  EXPECT_NE(message.find(why), std::string::npos) << message;
}

TEST(ConfigRefusals, MissingSizes) {
  const json all = smallest();
  for (const auto& [key, value] : all.items()) {
    json config = all;
    config.erase(key);
    expect_refused(config, key, key == "architectures" ? "expected one class name" : "missing");
  }
}

TEST(ConfigRefusals, SizesThatAreNoPositiveWholeNumber) {
  const json wrong = json::array({0, -1, 2.5, 2.0, "32", true, json::array({32}), json::object(), 1e300});
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "intermediate_size", "max_position_embeddings", "head_dim"})
    for (const json& value : wrong)
      expect_refused(with(smallest(), {{key, value}}), key, "expected a positive whole number");
}

TEST(ConfigRefusals, SizesThatNoModelHas) {
  expect_refused(with(smallest(), {{"vocab_size", std::uint64_t{1} << 31}}), "vocab_size", "at most 2147483647");
  expect_refused(with(smallest(), {{"vocab_size", UINT64_MAX}}), "vocab_size", "at most 2147483647");
  EXPECT_EQ(read(with(smallest(), {{"max_position_embeddings", INT32_MAX}})).max_positions, INT32_MAX);
  expect_refused(with(smallest(), {{"vocab_size", 100'000'000}}), "vocab_size", "at most 16777216");
  const std::int64_t million = 1'000'000;
  expect_refused(with(smallest(), {{"num_hidden_layers", million}}), "num_hidden_layers", "at most 1024");
  expect_refused(with(smallest(), {{"hidden_size", 100 * million}}), "hidden_size", "more than any model has");
  expect_refused(with(smallest(), {{"intermediate_size", 100 * million}}), "intermediate_size", "at most 16777216");
  expect_refused(with(smallest(), {{"head_dim", 100 * million}}), "head_dim", "at most 4194304");
  expect_refused(with(smallest(), {{"num_attention_heads", 100 * million}, {"head_dim", 2}}), "num_attention_heads",
                 "more than any model has");
  // Each size possible, their product not: it would not fit 64 bits of anything.
  expect_refused(with(smallest(), {{"hidden_size", 10 * million},
                                   {"head_dim", 128},
                                   {"intermediate_size", 10 * million},
                                   {"num_hidden_layers", 1000}}),
                 "num_hidden_layers", "some size is wrong");
}

TEST(ConfigRefusals, NumbersThatAreNotPositive) {
  for (const char* key : {"rms_norm_eps", "rope_theta", "initializer_range", "partial_rotary_factor"})
    for (const json& value : json::array({0, -1.0, "1e-6", json::array({1.0}), true}))
      expect_refused(with(smallest(), {{key, value}}), key, "expected a positive number");
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    for (const json& value : json::array({0, -1.0, "8"})) {
      json scaling = llama3_scaling();
      scaling[key] = value;
      expect_refused(with(smallest(), {{"rope_scaling", scaling}}), std::string("rope_scaling.") + key,
                     "expected a positive number");
    }
  }
}

// A double that fp32 makes 0 or infinite would divide by zero, or silence every layer, without a word.
TEST(ConfigRefusals, NumbersThatFp32CannotHold) {
  for (const json& value : json::array({1e-46, 1e-40, 1e39, 1e300}))
    for (const char* key : {"rms_norm_eps", "rope_theta", "initializer_range"})
      expect_refused(with(smallest(), {{key, value}}), key, "outside the range of fp32");
}

TEST(ConfigRefusals, SwitchesAndTextsOfAnotherType) {
  for (const char* key : {"attention_bias", "mlp_bias", "tie_word_embeddings"})
    for (const json& value : json::array({0, 1, "true"}))
      expect_refused(with(smallest(), {{key, value}}), key, "expected true or false");
  expect_refused(with(smallest(), {{"hidden_act", 1}}), "hidden_act", "expected a string");
  expect_refused(with(smallest(), {{"rope_scaling", "llama3"}}), "rope_scaling", "expected an object");
  expect_refused(with(smallest(), {{"rope_parameters", json::array()}}), "rope_parameters", "expected an object");
  expect_refused(with(smallest(), {{"rope_scaling", {{"rope_type", 3}}}}), "rope_scaling.rope_type", "a string");
}

TEST(ConfigRefusals, ArchitecturesThatAreNotKnown) {
  for (const json& value : json::array({json::array(), json::array({"LlamaForCausalLM", "Qwen3ForCausalLM"})}))
    expect_refused(with(smallest(), {{"architectures", value}}), "architectures", "expected one class name");
  for (const json& value : json::array({"LlamaForCausalLM", json::array({1})}))
    expect_refused(with(smallest(), {{"architectures", value}}), "architectures", "expected a list of strings");
  const json other = smallest("GPT2LMHeadModel");
  expect_refused(other, "architectures", "'GPT2LMHeadModel' is not supported");
  expect_refused(other, "architectures", "LlamaForCausalLM, MistralForCausalLM");
}

TEST(ConfigRefusals, WhatWouldMakeAnotherModel) {
  expect_refused(with(smallest(), {{"hidden_act", "gelu"}}), "hidden_act", "'gelu' is not supported, only 'silu'");
  expect_refused(with(smallest(), {{"attention_dropout", 0.1}}), "attention_dropout", "set it to 0");
  expect_refused(with(smallest(), {{"attention_dropout", "0"}}), "attention_dropout", "set it to 0");
  expect_refused(with(smallest(), {{"quantization_config", {{"bits", 4}}}}), "quantization_config", "unquantised");
  expect_refused(with(smallest_qwen3(), {{"layer_types", {"full_attention", "chunked_attention"}}}), "layer_types",
                 "'chunked_attention' is not supported");
  expect_refused(with(smallest_qwen3(), {{"layer_types", {"full_attention", "sliding_attention"}}}), "layer_types",
                 "no sliding window");
  expect_refused(with(smallest_qwen3(), {{"layer_types", {"full_attention"}}}), "layer_types",
                 "1 entries for 2 layers");
}

TEST(ConfigRefusals, HeadsThatDoNotFit) {
  expect_refused(with(smallest(), {{"num_key_value_heads", 3}}), "num_key_value_heads", "must divide");
  expect_refused(with(smallest(), {{"num_key_value_heads", 8}}), "num_key_value_heads", "must divide");
  expect_refused(with(smallest(), {{"num_attention_heads", 5}}), "head_dim", "does not divide hidden_size");
  expect_refused(with(smallest(), {{"head_dim", 7}}), "head_dim", "must be even");
  expect_refused(with(smallest(), {{"hidden_size", 12}}), "head_dim", "must be even");
}

TEST(ConfigRefusals, RotationsThatAreNotKnown) {
  for (const char* type : {"proportional", "su", "ntk"}) {
    expect_refused(with(smallest(), {{"rope_scaling", {{"type", type}, {"factor", 2.0}}}}), "rope_scaling.rope_type",
                   std::string("'") + type + "' is not supported");
    expect_refused(with(smallest(), {{"rope_parameters", {{"rope_type", type}}}}), "rope_parameters.rope_type",
                   "only 'default', 'linear', 'dynamic', 'llama3', 'yarn' and 'longrope'");
  }
  for (const char* type : {"yarn", "linear"})
    expect_refused(with(smallest(), {{"rope_scaling", {{"type", type}}}}), "rope_scaling.factor", "missing");
  json factors{{"type", "longrope"}, {"short_factor", {1, 1, 1, 1}}, {"long_factor", {1, 2, 3}}};
  expect_refused(with(smallest(), {{"rope_scaling", factors}}), "rope_scaling.long_factor",
                 "has 3 numbers, expected 4");
  factors["long_factor"] = {1, 2, 3, "4"};
  expect_refused(with(smallest(), {{"rope_scaling", factors}}), "rope_scaling.long_factor", "list of positive numbers");
  expect_refused(with(smallest(), {{"partial_rotary_factor", 0.5}}), "partial_rotary_factor", "only 1 is supported");
  expect_refused(with(smallest(), {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}), "partial_rotary_factor",
                 "only 1 is supported");
  expect_refused(with(smallest(), {{"rope_scaling", llama3_scaling()}, {"rope_parameters", llama3_scaling()}}),
                 "rope_scaling", "given beside rope_parameters");
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    json scaling = llama3_scaling();
    scaling.erase(key);
    expect_refused(with(smallest(), {{"rope_scaling", scaling}}), std::string("rope_scaling.") + key, "missing");
  }
  for (const double high : {1.0, 0.5}) {
    json scaling = llama3_scaling();
    scaling["high_freq_factor"] = high;
    expect_refused(with(smallest(), {{"rope_scaling", scaling}}), "rope_scaling.high_freq_factor",
                   "must be greater than low_freq_factor");
  }
}

TEST(ConfigRefusals, TextThatIsNoJsonObject) {
  const auto message = [](const std::string& text) {
    return refusal_of([&] { read_decoder_spec(text, "dir/config.json"); });
  };
  EXPECT_EQ(message(""), "dir/config.json:1: not valid JSON");
  EXPECT_EQ(message("{\n\"a\": 1,\n\"b\": oops}"), "dir/config.json:3: not valid JSON");
  EXPECT_EQ(message("{\"a\": \"\xff\"}"), "dir/config.json:1: not valid JSON");
  for (const char* text : {"[]", "3", "null", "\"text\""})
    EXPECT_EQ(message(text), "dir/config.json: expected a JSON object") << text;
  EXPECT_EQ(message(std::string(100'000, '[')), "dir/config.json: nested more than 32 deep");
}

// A config is a stranger's text and may end up in a terminal.
TEST(ConfigRefusals, TextFromTheFileStaysOnOneLine) {
  const std::string nasty = "x\n\x1b[31m";
  for (const json& config : {with(smallest(), {{"hidden_act", nasty}}), smallest(nasty.c_str()),
                             with(smallest(), {{"rope_scaling", {{"rope_type", nasty}}}}),
                             with(smallest_qwen3(), {{"layer_types", {nasty, nasty}}})}) {
    const std::string message = refusal_of([&] { read(config); });
    EXPECT_NE(message.find("x\\x0a\\x1b[31m"), std::string::npos) << message;
  }
}

TEST(ConfigRefusals, FilesThatCannotBeRead) {
  const test::TemporaryDirectory directory;
  const std::string message = refusal_of([&] { read_decoder_spec(directory / "config.json"); });
  EXPECT_NE(message.find((directory / "config.json").string() + ": no such file"), std::string::npos) << message;
  test::write_file(directory / "config.json", smallest().dump());
  EXPECT_EQ(read_decoder_spec(directory / "config.json").vocab, 100);
  // A directory in its place.
  EXPECT_NE(refusal_of([&] { read_decoder_spec(directory.path()); }).find(directory.path().string()),
            std::string::npos);
}

}  // namespace
}  // namespace so
