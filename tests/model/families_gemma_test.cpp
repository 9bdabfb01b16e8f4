// The config.json of Gemma 3 and of Gemma 4, of its models with experts, with inputs of each layer and with layers that
// attend to the keys and values of others; and what is counted of the last two.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/family_config.h"
#include "model/flops.h"
#include "model/parameters.h"
#include "model/sequence_split.h"
#include "model/stored_names.h"

namespace so {
namespace {

using nlohmann::json;
using test::config_of;
using test::expect_refused;
using test::experts;
using test::read_spec;
using test::windows;
using test::Windows;

TEST(Families, Gemma3AsTransformersReadsIt) {
  const auto of = [](const json& more) { return read_spec(config_of("Gemma3ForCausalLM", more)); };
  const DecoderSpec spec = of(json::object());
  EXPECT_EQ(spec.head_dim, 256);
  EXPECT_EQ(spec.norm_offset, 1);
  EXPECT_EQ(spec.gate, MlpActivation::gelu_tanh);
  EXPECT_TRUE(spec.qk_norm && spec.input_norms && spec.output_norms && spec.tied_embeddings);
  EXPECT_EQ(spec.score_scale(0), 0.0625f);
  EXPECT_DOUBLE_EQ(spec.embedding_scale, std::sqrt(32.0));
  EXPECT_EQ(spec.rope.theta, 1e6);
  ASSERT_TRUE(spec.local_rope);
  EXPECT_EQ(spec.local_rope->theta, 1e4);
  EXPECT_EQ(windows(spec), Windows(4, 4096));  // the sixth layer would see all
  EXPECT_EQ(windows(of({{"sliding_window", 7}, {"sliding_window_pattern", 2}})), (Windows{7, 0, 7, 0}));
  const DecoderSpec scaled = of({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}},
                                 {"rope_local_base_freq", 500},
                                 {"query_pre_attn_scalar", 64},
                                 {"final_logit_softcapping", nullptr}});
  EXPECT_EQ(scaled.rope.scaling, RopeScaling::linear);
  EXPECT_EQ(scaled.rope.factor, 8);
  EXPECT_EQ(scaled.local_rope->scaling, RopeScaling::none);
  EXPECT_EQ(scaled.local_rope->theta, 500);
  EXPECT_EQ(scaled.score_scale(0), 0.125f);
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"})
    expect_refused(config_of("Gemma3ForCausalLM", {{key, 30.0}}), {key, "soft cap"});
  expect_refused(config_of("Gemma3ForCausalLM", {{"use_bidirectional_attention", true}}),
                 {"use_bidirectional_attention"});
  expect_refused(config_of("Gemma3ForCausalLM", {{"hidden_activation", "gelu"}}),
                 {"hidden_activation", "gelu_pytorch_tanh"});
  expect_refused(config_of("Gemma3ForCausalLM", {{"sliding_window", nullptr}}), {"sliding_window", "full_attention"});
}

json gemma4(json more = json::object()) {
  more.emplace("hidden_size_per_layer_input", 0);
  return config_of("Gemma4ForCausalLM", more);
}

TEST(Families, Gemma4AsTransformersReadsIt) {
  const DecoderSpec spec = read_spec(gemma4({{"num_hidden_layers", 7}}));
  EXPECT_TRUE(spec.qk_norm && spec.value_norm && spec.input_norms && spec.output_norms && spec.layer_scales);
  EXPECT_TRUE(spec.tied_embeddings && !spec.qkv_bias && !spec.o_bias);
  EXPECT_EQ(spec.norm_offset, 0);
  EXPECT_EQ(spec.gate, MlpActivation::gelu_tanh);
  EXPECT_EQ(spec.logits_cap, 0);
  EXPECT_DOUBLE_EQ(spec.embedding_scale, std::sqrt(32.0));
  EXPECT_EQ(windows(spec), (Windows{512, 512, 512, 512, 512, 0, 0}));  // the last always sees all
  EXPECT_EQ(spec.score_scale(0), 1);
  EXPECT_EQ(spec.shape(0).head_dim, 256);
  EXPECT_EQ(spec.shape(5).head_dim, 512);
  EXPECT_EQ(spec.shape(5).kv_heads, 2);
  EXPECT_FALSE(spec.shape(5).keys_are_values);
  EXPECT_EQ(spec.rope.theta, 1e6);
  EXPECT_EQ(spec.rope.rotary_dim, 512);
  EXPECT_EQ(spec.rope.still_pairs, 192);
  ASSERT_TRUE(spec.local_rope);
  EXPECT_EQ(spec.local_rope->theta, 1e4);
  EXPECT_EQ(spec.local_rope->rotary_dim, 256);
  EXPECT_EQ(spec.local_rope->still_pairs, 0);
  EXPECT_EQ(spec.layer(0).rotation, LayerRotation::local);
  EXPECT_EQ(spec.layer(6).rotation, LayerRotation::global);
}

TEST(Families, Gemma4HasItsHeadsByLayer) {
  const json published = {
      {"head_dim", 8},
      {"global_head_dim", 24},
      {"num_global_key_value_heads", 1},
      {"attention_k_eq_v", true},
      {"layer_types", {"full_attention", "sliding_attention", "sliding_attention", "full_attention"}}};
  json written = published;
  written.erase("global_head_dim");
  written.erase("num_global_key_value_heads");
  written["per_layer_config"] = {{"0", {{"head_dim", 24}, {"num_key_value_heads", 1}}},
                                 {"3", {{"head_dim", 24}, {"num_key_value_heads", 1}}}};
  for (const json& config : {published, written}) {
    const DecoderSpec spec = read_spec(gemma4(config));
    for (const std::int64_t layer : {0, 3}) {
      EXPECT_EQ(spec.shape(layer).head_dim, 24);
      EXPECT_EQ(spec.shape(layer).kv_heads, 1);
      EXPECT_EQ(spec.shape(layer).qkv_width(), (4 + 1) * 24);
    }
    EXPECT_EQ(spec.shape(1).qkv_width(), (4 + 2 + 2) * 8);
    EXPECT_EQ(spec.rope.rotary_dim, 24);
    EXPECT_EQ(spec.local_rope->rotary_dim, 8);
  }
  const auto refused = [&](const char* layer, const json& heads, const std::vector<std::string>& needles) {
    json config = written;
    config["per_layer_config"][layer] = heads;
    expect_refused(gemma4(config), needles);
  };
  refused("3", {{"head_dim", 16}, {"num_key_value_heads", 1}}, {"per_layer_config", "layer 3 has other heads"});
  refused("1", {{"head_dim", 16}}, {"per_layer_config", "layer 1 has a window"});
  refused("0", {{"head_dim", 24}, {"intermediate_size", 8}}, {"per_layer_config", "intermediate_size"});
  refused("4", {{"head_dim", 24}}, {"per_layer_config", "from 0 to 3"});
}

TEST(Families, Gemma4HasExpertsBesideItsMlp) {
  const json keys = {
      {"enable_moe_block", true}, {"num_experts", 8}, {"top_k_experts", 2}, {"moe_intermediate_size", 12}};
  const DecoderSpec spec = read_spec(gemma4(keys));
  const ExpertSpec& e = spec.experts;
  EXPECT_EQ(experts(spec), std::vector<bool>(4, true));
  EXPECT_EQ(e.count, 8);
  EXPECT_EQ(e.per_token, 2);
  EXPECT_EQ(e.intermediate, 12);
  EXPECT_EQ(e.shared_intermediate, 48);
  EXPECT_TRUE(e.renormalized && e.stacked && e.shared_apart && e.expert_scales && !e.shared_gate);
  EXPECT_EQ(e.activation.kind, ExpertActivation::Kind::geglu);
  EXPECT_DOUBLE_EQ(e.router_scale, 1 / std::sqrt(32.0));
  EXPECT_EQ(spec.mlp_width(0), 2 * 12 + 48);
  json many = keys;
  many["top_k_experts"] = 9;
  expect_refused(gemma4(many), {"top_k_experts", "at most num_experts"});
  many.erase("top_k_experts");
  expect_refused(gemma4(many), {"top_k_experts", "missing"});
}

TEST(Families, Gemma4RefusesWhatIsNotDone) {
  expect_refused(gemma4({{"use_bidirectional_attention", "all"}}), {"use_bidirectional_attention", "causal"});
  EXPECT_EQ(
      read_spec(gemma4({{"use_bidirectional_attention", "vision"}, {"final_logit_softcapping", 30.0}})).logits_cap, 30);
  expect_refused(gemma4({{"sliding_window", nullptr}}), {"sliding_window", "full_attention"});
  expect_refused(gemma4({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}}), {"rope_scaling"});
  const auto rotations = [](const json& full) {
    return gemma4(
        {{"rope_parameters",
          {{"full_attention", full}, {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 100}}}}}});
  };
  expect_refused(rotations({{"rope_type", "yarn"}, {"rope_theta", 100}, {"factor", 8.0}}),
                 {"rope_type", "proportional"});
  expect_refused(rotations({{"rope_theta", 100}, {"partial_rotary_factor", 0.5}}), {"partial_rotary_factor"});
  expect_refused(rotations({{"rope_type", "proportional"}}), {"rope_theta", "missing"});
  const DecoderSpec scaled =
      read_spec(rotations({{"rope_type", "proportional"}, {"rope_theta", 100}, {"factor", 8.0}}));
  EXPECT_EQ(scaled.rope.scaling, RopeScaling::linear);
  EXPECT_EQ(scaled.rope.still_pairs, 0);
  EXPECT_EQ(read_spec(gemma4({{"layer_types", std::vector<std::string>(4, "sliding_attention")}})).remarks.size(), 1u);
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
