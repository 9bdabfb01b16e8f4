// Gemma 4's models with inputs of each layer and with layers that attend to the keys and values of others: what
// config.json says of both, and what is counted.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/flops.h"
#include "model/parameters.h"
#include "model/sequence_split.h"
#include "model/stored_names.h"
#include "support/errors.h"

namespace so {
namespace {

using nlohmann::json;

json gemma4(const json& more = json::object()) {
  json config{{"architectures", {"Gemma4ForCausalLM"}},
              {"vocab_size", 100},
              {"hidden_size", 32},
              {"num_hidden_layers", 4},
              {"num_attention_heads", 4},
              {"num_key_value_heads", 2},
              {"intermediate_size", 48},
              {"max_position_embeddings", 64},
              {"hidden_size_per_layer_input", 0}};
  config.update(more);
  return config;
}

DecoderSpec read_spec(const json& config) { return read_decoder_spec(config.dump(), "config.json"); }

void expect_refused(const json& config, const std::vector<std::string>& needles) {
  test::expect_in(test::refusal([&] { read_spec(config); }), needles);
}

TEST(Gemma4E, Gemma4HasInputsOfItsLayers) {
  json usual = gemma4();
  usual.erase("hidden_size_per_layer_input");
  const DecoderSpec spec = read_spec(usual);
  EXPECT_EQ(spec.layer_input, 256);
  EXPECT_EQ(spec.layer_input_vocab, 262144);
  EXPECT_EQ(spec.layer_inputs_width(), 4 * 256);
  EXPECT_EQ(read_spec(gemma4()).layer_input, 0);
  const auto of_vocab = [](std::int64_t rows) {
    return gemma4({{"hidden_size_per_layer_input", 6}, {"vocab_size_per_layer_input", rows}});
  };
  const std::int64_t vocab = spec.vocab;
  EXPECT_EQ(read_spec(of_vocab(vocab)).layer_input_vocab, vocab);
  expect_refused(of_vocab(vocab - 1), {"vocab_size_per_layer_input", "vocab_size"});
}

TEST(Gemma4E, Gemma4TakesKeysAndValuesOfLayersOfTheSameKind) {
  json keys = {{"num_kv_shared_layers", 3},
               {"num_hidden_layers", 6},
               {"attention_k_eq_v", true},
               {"head_dim", 8},
               {"global_head_dim", 24},
               {"layer_types",
                {"sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention",
                 "full_attention"}}};
  const auto keys_of = [](const DecoderSpec& spec) {
    std::vector<std::int64_t> all;
    for (const LayerSpec& layer : spec.layer_specs) all.push_back(layer.keys_of);
    return all;
  };
  const DecoderSpec spec = read_spec(gemma4(keys));
  EXPECT_EQ(keys_of(spec), (std::vector<std::int64_t>{-1, -1, -1, 1, 2, 1}));
  EXPECT_TRUE(spec.shares_keys() && spec.gives_keys(1) && spec.gives_keys(2) && !spec.gives_keys(0));
  EXPECT_EQ(spec.shape(2).qkv_width(), (4 + 2 + 2) * 8);
  EXPECT_EQ(spec.shape(3).qkv_width(), 4 * 24);
  EXPECT_EQ(spec.shape(3).rotated_width(), 4 * 24);
  EXPECT_EQ(spec.shape(4).qkv_width(), 4 * 8);
  EXPECT_FALSE(spec.shape(3).keys_are_values || spec.shape(3).value_norm);
  for (const std::int64_t layer : {2, 3}) EXPECT_EQ(spec.mlp_width(layer), 48);
  keys["use_double_wide_mlp"] = true;
  const DecoderSpec wide = read_spec(gemma4(keys));
  EXPECT_EQ(wide.mlp_width(2), 48);
  EXPECT_EQ(wide.mlp_width(3), 96);
  const auto refused = [&](const char* key, const json& value, const std::vector<std::string>& needles) {
    json config = keys;
    config[key] = value;
    expect_refused(gemma4(config), needles);
  };
  refused("num_kv_shared_layers", 5, {"num_kv_shared_layers", "layer 1 ", "none of its kind"});
  refused("num_kv_shared_layers", 6, {"num_kv_shared_layers", "layer 0 "});
  refused("num_kv_shared_layers", 7, {"num_kv_shared_layers", "from 0 to 5"});
  for (const auto& [key, value] : {std::pair{"num_experts", 8}, {"top_k_experts", 2}, {"moe_intermediate_size", 12}})
    keys[key] = value;
  refused("enable_moe_block", true, {"use_double_wide_mlp", "experts"});
  test::expect_in(test::refusal([&] { require_sequence_split(spec, 2, "it"); }),
                  {"--sequence_parallel_size 2", "keys and values of others"});
  require_sequence_split(spec, 1, "it");
}

// Published files have keys and values of all layers, as transformers' class lets them be.
TEST(Gemma4E, LeavesKeysThatNothingReadsAsTheyAre) {
  const DecoderSpec spec =
      read_spec(gemma4({{"num_kv_shared_layers", 1}, {"layer_types", std::vector<std::string>(4, "full_attention")}}));
  const std::vector<StoredNames> names = possible_names(spec);
  ASSERT_EQ(names.size(), 1u);
  for (const char* part : {"k_proj", "v_proj", "k_norm"}) {
    EXPECT_TRUE(names[0].carries(fmt::format("model.layers.3.self_attn.{}.weight", part))) << part;
    EXPECT_FALSE(names[0].carries(fmt::format("model.layers.2.self_attn.{}.weight", part))) << part;
  }
  for (const char* part : {"q_proj", "o_proj", "q_norm"})
    EXPECT_FALSE(names[0].carries(fmt::format("model.layers.3.self_attn.{}.weight", part))) << part;
  for (const Parameter& p : make_parameters(spec)) EXPECT_FALSE(names[0].carries(p.name)) << p.name;
}

TEST(Gemma4E, CountsTheProductsOfInputsOfLayers) {
  const DecoderSpec without = read_spec(gemma4()),
                    with = read_spec(gemma4({{"hidden_size_per_layer_input", 6}, {"vocab_size_per_layer_input", 100}}));
  constexpr std::array<std::int32_t, 2> document{0, 10};
  const auto plain = unit_flops(without, document), more = unit_flops(with, document);
  EXPECT_EQ(plain.front().forward, 0);
  EXPECT_EQ(more.front().forward, 2 * 10 * 4 * 6 * 32);
  EXPECT_EQ(more.front().backward, 2 * more.front().forward);
  EXPECT_EQ(more[1].forward - plain[1].forward, 2 * 10 * 2 * 6 * 32);
  EXPECT_EQ(more.back().forward, plain.back().forward);
  EXPECT_EQ(parameter_count(with) - parameter_count(without), 100 * 4 * 6 + 4 * 6 * 32 + 6 + 4 * (2 * 6 * 32 + 32));
}

}  // namespace
}  // namespace so
