// config.json is read into a spec: these are the keys that are a family's own.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/family_config.h"

namespace so {
namespace {

using nlohmann::json;
using test::config_of;
using test::expect_refused;
using test::experts;
using test::read_spec;
using test::windows;
using test::Windows;

TEST(Families, KeyHeadsWithoutTheKeyAreTransformersDefault) {
  const auto key_heads = [](const char* architecture, bool null) {
    json config = config_of(architecture, {{"num_attention_heads", 32},
                                           {"hidden_size", 256},
                                           {"num_experts", 4},
                                           {"num_experts_per_tok", 2},
                                           {"moe_intermediate_size", 8}});
    config.erase("num_key_value_heads");
    if (null) config["num_key_value_heads"] = nullptr;
    return read_spec(config).kv_heads;
  };
  for (const auto& [architecture, expected] : {std::pair{"LlamaForCausalLM", 32},
                                               {"Phi3ForCausalLM", 32},
                                               {"Qwen2ForCausalLM", 32},
                                               {"Qwen3ForCausalLM", 32},
                                               {"MistralForCausalLM", 8},
                                               {"MixtralForCausalLM", 8},
                                               {"SeedOssForCausalLM", 8},
                                               {"GptOssForCausalLM", 8},
                                               {"Qwen3MoeForCausalLM", 4},
                                               {"SmolLM3ForCausalLM", 4},
                                               {"Olmo2ForCausalLM", 32},
                                               {"Olmo3ForCausalLM", 32},
                                               {"GraniteForCausalLM", 32},
                                               {"Glm4ForCausalLM", 2},
                                               {"Gemma3ForCausalLM", 4},
                                               {"Qwen3_5ForCausalLM", 4}}) {
    EXPECT_EQ(key_heads(architecture, false), expected) << architecture;
    EXPECT_EQ(key_heads(architecture, true), 32) << architecture;
  }
}

TEST(Families, MistralSeesAWindowUnlessItIsNull) {
  EXPECT_EQ(windows(read_spec(config_of("MistralForCausalLM"))), Windows(4, 4096));  // as in transformers
  EXPECT_EQ(windows(read_spec(config_of("MistralForCausalLM", {{"sliding_window", 7}}))), Windows(4, 7));
  EXPECT_EQ(windows(read_spec(config_of("MistralForCausalLM", {{"sliding_window", nullptr}}))), Windows(4, 0));
  EXPECT_FALSE(read_spec(config_of("MistralForCausalLM")).qkv_bias);
}

TEST(Families, QwenWindowsOnTheUpperLayersOrWhereLayerTypesSays) {
  for (const char* architecture : {"Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    EXPECT_EQ(windows(read_spec(config_of(architecture, {{"sliding_window", 7}, {"max_window_layers", 1}}))),
              Windows(4, 0));
    const json on{{"use_sliding_window", true}, {"sliding_window", 7}, {"max_window_layers", 3}};
    EXPECT_EQ(windows(read_spec(config_of(architecture, on))), (Windows{0, 0, 0, 7}));
    json all = on;
    all["max_window_layers"] = 0;
    EXPECT_EQ(windows(read_spec(config_of(architecture, all))), Windows(4, 7));
    json typed = on;
    typed["layer_types"] = {"sliding_attention", "full_attention", "full_attention", "full_attention"};
    EXPECT_EQ(windows(read_spec(config_of(architecture, typed))), (Windows{7, 0, 0, 0}));
  }
}

TEST(Families, BiasesAsEachHasThem) {
  const auto biases = [](const DecoderSpec& s) { return std::pair(s.qkv_bias, s.o_bias); };
  EXPECT_EQ(biases(read_spec(config_of("Qwen2ForCausalLM"))), std::pair(true, false));
  EXPECT_EQ(biases(read_spec(config_of("SeedOssForCausalLM"))), std::pair(true, false));
  EXPECT_EQ(
      biases(read_spec(config_of("SeedOssForCausalLM", {{"attention_bias", false}, {"attention_out_bias", true}}))),
      std::pair(false, true));
  EXPECT_EQ(biases(read_spec(config_of("LlamaForCausalLM", {{"attention_bias", true}}))), std::pair(true, true));
  EXPECT_EQ(biases(read_spec(config_of("Phi3ForCausalLM"))), std::pair(false, false));
}

TEST(Families, SeedOssTrainsWithoutTheDropoutOfItsConfigAndSaysSo) {
  const auto remarks = [](const json& config) { return read_spec(config).remarks; };
  EXPECT_EQ(remarks(config_of("SeedOssForCausalLM", {{"attention_dropout", 0.25}, {"residual_dropout", 0}})),
            std::vector<std::string>{"config.json has attention_dropout 0.25; training here is without dropout"});
  EXPECT_EQ(remarks(config_of("SeedOssForCausalLM")).size(), 2u);
  EXPECT_TRUE(remarks(config_of("LlamaForCausalLM")).empty());
  test::expect_in(test::refusal([&] {
                    read_spec(config_of("Phi3ForCausalLM", {{"resid_pdrop", 0.1}}));
                  }),
                  {"config.json: resid_pdrop", "dropout"});
}

TEST(Families, PhiRotatesAPartOfAHeadByFactorsOfItsOwn) {
  json config =
      config_of("Phi3ForCausalLM",
                {{"partial_rotary_factor", 0.5}, {"original_max_position_embeddings", 16}, {"rope_theta", 500}});
  for (const char* type : {"longrope", "su", "yarn"}) {
    config["rope_scaling"] = {{"type", type}, {"short_factor", {1.0, 1.5}}, {"long_factor", {2.0, 4.0}}};
    const RopeSpec rope = read_spec(config).rope;
    EXPECT_EQ(rope.rotary_dim, 4);
    EXPECT_EQ(rope.theta, 500);
    EXPECT_EQ(rope.scaling, RopeScaling::longrope);
    EXPECT_EQ(rope.original_positions, 16);
    EXPECT_EQ(rope.long_factor, (std::vector<double>{2, 4}));
    EXPECT_DOUBLE_EQ(rope.attention_factor, std::sqrt(1 + std::log(4.0) / std::log(16.0)));
  }
  // As transformers: the key beside the rotation counts, and 4096 without it; the one inside does not.
  config["rope_scaling"]["original_max_position_embeddings"] = 8;
  EXPECT_EQ(read_spec(config).rope.original_positions, 16);
  config.erase("original_max_position_embeddings");
  EXPECT_EQ(read_spec(config).rope.original_positions, 4096);
  config["original_max_position_embeddings"] = 16;
  config["partial_rotary_factor"] = 0.3;  // 2.4 dimensions: 2
  config["rope_scaling"] = nullptr;
  EXPECT_EQ(read_spec(config).rope.rotary_dim, 2);
  config["partial_rotary_factor"] = 0.4;  // 3
  test::expect_in(test::refusal([&] { read_spec(config); }),
                  {"partial_rotary_factor", "rotates 3 dimensions of a head of 8"});
}

TEST(Families, YarnIsForAllAndScalesAttention) {
  json yarn{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16}};
  const RopeSpec plain = read_spec(config_of("Qwen3ForCausalLM", {{"rope_scaling", yarn}})).rope;
  EXPECT_EQ(plain.scaling, RopeScaling::yarn);
  EXPECT_EQ(plain.beta_fast, 32);
  EXPECT_TRUE(plain.truncate);
  EXPECT_DOUBLE_EQ(plain.attention_factor, 0.1 * std::log(4.0) + 1);
  yarn["attention_factor"] = 1.5;
  yarn["truncate"] = false;
  const RopeSpec given = read_spec(config_of("Qwen3ForCausalLM", {{"rope_scaling", yarn}})).rope;
  EXPECT_EQ(given.attention_factor, 1.5);
  EXPECT_FALSE(given.truncate);
}

json moe(const json& more = json::object()) {
  json config =
      config_of("Qwen3MoeForCausalLM",
                {{"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 12}, {"head_dim", 8}});
  config.update(more);
  return config;
}

TEST(Families, Qwen3MoeHasExpertsWhereTheConfigPutsThem) {
  const DecoderSpec s = read_spec(moe());
  EXPECT_EQ(s.experts.count, 8);
  EXPECT_EQ(s.experts.per_token, 2);
  EXPECT_EQ(s.experts.intermediate, 12);
  EXPECT_FALSE(s.experts.renormalized);
  EXPECT_EQ(s.experts.balance, 0);
  EXPECT_EQ(experts(s), std::vector<bool>(4, true));
  EXPECT_EQ(s.mlp_width(0), 24);
  EXPECT_EQ(experts(read_spec(moe({{"decoder_sparse_step", 2}}))), (std::vector<bool>{false, true, false, true}));
  const DecoderSpec dense = read_spec(moe({{"mlp_only_layers", {0, 3}}, {"norm_topk_prob", true}}));
  EXPECT_EQ(experts(dense), (std::vector<bool>{false, true, true, false}));
  EXPECT_EQ(dense.expert_layers(), 2);
  EXPECT_EQ(dense.mlp_width(0), 48);
  EXPECT_TRUE(dense.experts.renormalized);
}

TEST(Families, TheRoutersLossCountsWhenTheConfigAsksForIt) {
  EXPECT_EQ(read_spec(moe({{"router_aux_loss_coef", 0.5}})).experts.balance, 0);
  EXPECT_EQ(read_spec(moe({{"router_aux_loss_coef", 0.5}, {"output_router_logits", true}})).experts.balance, 0.5);
  EXPECT_EQ(read_spec(moe({{"output_router_logits", true}})).experts.balance, 0.001);
}

std::vector<bool> deltas(const DecoderSpec& spec) {
  std::vector<bool> result;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) result.push_back(spec.is_delta(layer));
  return result;
}

TEST(Families, Qwen35WithoutKeysIsThatOfTransformers) {
  const DecoderSpec s = read_spec(config_of("Qwen3_5ForCausalLM"));
  EXPECT_EQ(s.head_dim, 256);
  EXPECT_EQ(s.rope.rotary_dim, 64);
  EXPECT_EQ(s.rope.theta, 10000);
  EXPECT_TRUE(s.output_gate && s.qk_norm && !s.qkv_bias && !s.o_bias && !s.tied_embeddings);
  EXPECT_EQ(s.norm_offset, 1);
  EXPECT_EQ(deltas(s), (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(s.delta.k_heads, 16);
  EXPECT_EQ(s.delta.v_heads, 32);
  EXPECT_EQ(s.delta.k_dim, 128);
  EXPECT_EQ(s.delta.v_dim, 128);
  EXPECT_EQ(s.delta.convolution, 4);
  EXPECT_EQ(s.delta.convolved_width(), 8192);
  EXPECT_EQ(s.delta.projected_width(), 8192 + 4096 + 64);
  EXPECT_EQ(s.shape(3).qkv_width(), (2 * 4 + 2 * 2) * 256);
}

TEST(Families, Qwen35ReadsWhatIsPublished) {
  const json more{{"full_attention_interval", 2},
                  {"attn_output_gate", true},
                  {"attention_bias", true},
                  {"linear_num_key_heads", 2},
                  {"linear_num_value_heads", 6},
                  {"linear_key_head_dim", 8},
                  {"linear_value_head_dim", 10},
                  {"linear_conv_kernel_dim", 3},
                  {"head_dim", 16},
                  {"mamba_ssm_dtype", "float32"},
                  {"mtp_num_hidden_layers", 1},
                  {"mtp_use_dedicated_embeddings", false},
                  {"tie_word_embeddings", true},
                  {"rope_parameters",
                   {{"rope_type", "default"},
                    {"rope_theta", 1e7},
                    {"partial_rotary_factor", 0.5},
                    {"mrope_interleaved", true},
                    {"mrope_section", {11, 11, 10}}}}};
  const DecoderSpec s = read_spec(config_of("Qwen3_5ForCausalLM", more));
  EXPECT_EQ(deltas(s), (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(s.delta.v_heads, 6);
  EXPECT_EQ(s.delta.v_dim, 10);
  EXPECT_EQ(s.delta.convolution, 3);
  EXPECT_EQ(s.rope.rotary_dim, 8);
  EXPECT_EQ(s.rope.theta, 1e7);
  EXPECT_TRUE(s.qkv_bias && s.o_bias && s.tied_embeddings);
  json typed = config_of("Qwen3_5ForCausalLM", more);
  typed["layer_types"] = {"full_attention", "linear_attention", "linear_attention", "full_attention"};
  EXPECT_EQ(deltas(read_spec(typed)), (std::vector<bool>{false, true, true, false}));
}

TEST(Families, Qwen35RefusesWhatItIsNot) {
  const auto refused = [](const char* key, const json& value, const char* why) {
    expect_refused(config_of("Qwen3_5ForCausalLM", {{key, value}}), {std::string("config.json: ") + key, why});
  };
  refused("attn_output_gate", false, "only true");
  refused("hidden_act", "gelu", "only 'silu'");
  refused("mamba_ssm_dtype", "bfloat16", "only 'float32'");
  refused("linear_num_value_heads", 24, "multiple of linear_num_key_heads");
  refused("linear_conv_kernel_dim", 9, "at most 8");
  refused("full_attention_interval", 0, "positive");
  refused("layer_types", json{"full_attention"}, "has 1 entries for 4 layers");
  refused("layer_types", json{"full_attention", "full_attention", "full_attention", "sliding_attention"},
          "only 'linear_attention' and 'full_attention'");
  refused("linear_value_head_dim", 1 << 25, "more than any model has");
  expect_refused(config_of("Qwen3_5ForCausalLM", {{"rope_parameters", {{"mrope_section", {1, -1}}}}}),
                 {"rope_parameters.mrope_section"});
}

TEST(Families, GptOss) {
  const json config = config_of("GptOssForCausalLM", {{"num_local_experts", 8},
                                                      {"experts_per_token", 2},
                                                      {"sliding_window", 5},
                                                      {"swiglu_limit", 3.0},
                                                      {"quantization_config", {{"quant_method", "mxfp4"}}}});
  const DecoderSpec s = read_spec(config);
  EXPECT_EQ(windows(s), (Windows{5, 0, 5, 0}));
  EXPECT_EQ(experts(s), std::vector<bool>(4, true));
  EXPECT_TRUE(s.sinks && s.qkv_bias && s.o_bias && s.experts.biases && s.experts.router_bias && s.experts.renormalized);
  EXPECT_EQ(s.experts.intermediate, 48);
  EXPECT_EQ(s.experts.layout, ExpertLayout::in_out);
  EXPECT_EQ(s.experts.activation.kind, ExpertActivation::Kind::clamped);
  EXPECT_EQ(s.experts.activation.limit, 3);
  EXPECT_EQ(s.head_dim, 64);
  EXPECT_EQ(s.rope.theta, 150000);
}

TEST(Families, Mixtral) {
  const DecoderSpec s = read_spec(config_of("MixtralForCausalLM"));
  EXPECT_EQ(s.experts.count, 8);
  EXPECT_EQ(s.experts.per_token, 2);
  EXPECT_EQ(s.experts.intermediate, 48);
  EXPECT_TRUE(s.experts.renormalized);
  EXPECT_EQ(experts(s), std::vector<bool>(4, true));
  EXPECT_EQ(windows(s), Windows(4, 0));
  EXPECT_EQ(s.head_dim, 8);
  EXPECT_EQ(s.rope.theta, 1000000);
  EXPECT_FALSE(s.tied_embeddings);
  EXPECT_FALSE(read_spec(config_of("MixtralForCausalLM", {{"attention_bias", true}})).qkv_bias);
  const DecoderSpec given = read_spec(config_of("MixtralForCausalLM", {{"num_local_experts", 6},
                                                                       {"num_experts_per_tok", 3},
                                                                       {"sliding_window", 7},
                                                                       {"output_router_logits", true},
                                                                       {"router_aux_loss_coef", 0.02},
                                                                       {"router_jitter_noise", 0.0},
                                                                       {"tie_word_embeddings", true}}));
  EXPECT_EQ(given.experts.count, 6);
  EXPECT_EQ(given.experts.per_token, 3);
  EXPECT_EQ(given.experts.balance, 0.02);
  EXPECT_EQ(windows(given), Windows(4, 7));
  EXPECT_TRUE(given.tied_embeddings);
  const json both{{"num_local_experts", 6}, {"num_experts", 6}};  // transformers' other name of it
  EXPECT_EQ(read_spec(config_of("MixtralForCausalLM", both)).experts.count, 6);
}

TEST(Families, KeysThatContradictEachOtherAreRefused) {
  const auto refused = [](const json& more, const std::vector<std::string>& needles) {
    test::expect_in(test::refusal([&] { read_spec(config_of("MixtralForCausalLM", more)); }), needles);
  };
  refused({{"num_local_experts", 6}, {"num_experts", 4}}, {"num_local_experts", "is 6, but num_experts is 4"});
  refused({{"dtype", "float32"}, {"torch_dtype", "bfloat16"}},
          {"torch_dtype", "is 'bfloat16', but dtype is 'float32'"});
  refused({{"model_type", "llama"}}, {"model_type", "'llama'", "MixtralForCausalLM", "'mixtral'"});
  for (const char* key : {"dtype", "torch_dtype"}) {
    refused({{key, "int8"}}, {key, "'int8' is not supported"});
    refused({{key, 16}}, {key, "expected a string"});
    for (const char* type : {"float32", "bfloat16", "float16"})
      EXPECT_EQ(read_spec(config_of("MixtralForCausalLM", {{key, type}, {"model_type", "mixtral"}})).layers, 4) << type;
  }
}

TEST(Families, EpsilonsOfNormsWithoutTheKey) {
  const auto epsilon = [](const char* architecture, const json& more = json::object()) {
    return read_spec(config_of(architecture, more)).rms_epsilon;
  };
  for (const char* architecture : {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
    EXPECT_EQ(epsilon(architecture), 1e-6f) << architecture;
  EXPECT_EQ(epsilon("Phi3ForCausalLM"), 1e-5f);
  EXPECT_EQ(epsilon("MixtralForCausalLM"), 1e-5f);
  EXPECT_EQ(epsilon("GptOssForCausalLM", {{"num_local_experts", 8}, {"num_experts_per_tok", 2}}), 1e-5f);
}

TEST(Families, WhatNoExpertsCanBe) {
  const auto refused = [](const json& config, std::initializer_list<std::string> what) {
    test::expect_in(test::refusal([&] { read_spec(config); }), what);
  };
  refused(moe({{"num_experts_per_tok", 9}}), {"num_experts_per_tok", "at most 8"});
  refused(moe({{"num_experts", 2000}}), {"num_experts", "at most 1024"});
  refused(moe({{"mlp_only_layers", {"0"}}}), {"mlp_only_layers", "whole numbers"});
  refused(moe({{"router_aux_loss_coef", -1}}), {"router_aux_loss_coef", "0 or more"});
  refused(moe({{"quantization_config", {{"quant_method", "mxfp4"}}}}), {"quantization_config", "unquantised"});
  json gpt = config_of("GptOssForCausalLM", {{"num_local_experts", 8}, {"num_experts_per_tok", 2}});
  gpt["quantization_config"] = {{"quant_method", "awq"}};
  refused(gpt, {"quantization_config", "'awq'", "only 'fp8' and 'mxfp4'", "unquantised"});
  gpt["quantization_config"] = {{"quant_method", "fp8"}};
  EXPECT_EQ(read_spec(gpt).experts.count, 8);
  gpt.erase("quantization_config");
  gpt["swiglu_alpha"] = 1.5;
  refused(gpt, {"swiglu_alpha", "1.702"});
  refused(config_of("MixtralForCausalLM", {{"router_jitter_noise", 0.01}}), {"router_jitter_noise", "set it to 0"});
  refused(config_of("MixtralForCausalLM", {{"num_local_experts", 2000}}), {"num_local_experts", "at most 1024"});
  refused(config_of("MixtralForCausalLM", {{"num_local_experts", 1024}, {"num_hidden_layers", 1000}}),
          {"num_local_experts", "1024 in each of 1000 layers is more than any model has"});
}

json ministral3(const json& rotation = json::object()) {
  json parameters{{"rope_type", "yarn"},
                  {"rope_theta", 1e6},
                  {"factor", 16.0},
                  {"original_max_position_embeddings", 16},
                  {"mscale", 1.0},
                  {"mscale_all_dim", 1.0},
                  {"llama_4_scaling_beta", 0.1}};
  parameters.update(rotation);
  return config_of("Ministral3ForCausalLM", {{"head_dim", 8}, {"rope_parameters", parameters}});
}

TEST(Families, Ministral3HasYarnAndQueriesThatGrow) {
  const DecoderSpec spec = read_spec(ministral3());
  EXPECT_EQ(spec.rope.scaling, RopeScaling::yarn);
  EXPECT_EQ(spec.rope.query_growth, 0.1);
  EXPECT_EQ(spec.rope.original_positions, 16);
  EXPECT_EQ(spec.rope.attention_factor, 1);
  EXPECT_EQ(windows(spec), (Windows{0, 0, 0, 0}));
  EXPECT_FALSE(spec.tied_embeddings || spec.qkv_bias || spec.o_bias);
  EXPECT_DOUBLE_EQ(read_spec(ministral3({{"mscale", 1.2}, {"mscale_all_dim", 0.6}})).rope.attention_factor,
                   (0.1 * 1.2 * std::log(16.0) + 1) / (0.1 * 0.6 * std::log(16.0) + 1));
  EXPECT_EQ(read_spec(ministral3({{"llama_4_scaling_beta", 0}})).rope.query_growth, 0);
  // Without keys, as transformers' Ministral3Config(); no other family reads the factor.
  json config = ministral3();
  for (const char* key : {"head_dim", "vocab_size", "num_key_value_heads", "rms_norm_eps"}) config.erase(key);
  config["num_attention_heads"] = 16;
  EXPECT_EQ(read_spec(config).head_dim, 128);
  EXPECT_EQ(read_spec(config).vocab, 131072);
  EXPECT_EQ(read_spec(config).kv_heads, 8);
  EXPECT_FLOAT_EQ(read_spec(config).rms_epsilon, 1e-5f);
  config["head_dim"] = nullptr;
  EXPECT_EQ(read_spec(config).head_dim, 2);
  config["sliding_window"] = 7;
  EXPECT_EQ(windows(read_spec(config)), (Windows{7, 7, 7, 7}));
  config["architectures"] = {"MistralForCausalLM"};
  config["vocab_size"] = 100;
  EXPECT_EQ(read_spec(config).rope.query_growth, 0);
}

// transformers fails, or computes with the model's own positions, where one of the keys is missing.
TEST(Families, Ministral3WithoutItsRotationIsRefused) {
  json config = ministral3();
  config.erase("rope_parameters");
  expect_refused(config, {"config.json: rope_parameters: missing"});
  for (const char* key : {"llama_4_scaling_beta", "original_max_position_embeddings", "factor"}) {
    config = ministral3();
    config["rope_parameters"].erase(key);
    expect_refused(config, {std::string("rope_parameters.") + key + ": missing"});
  }
  expect_refused(ministral3({{"llama_4_scaling_beta", -0.1}}), {"llama_4_scaling_beta", "0 or more"});
  expect_refused(ministral3({{"rope_type", "default"}}), {"rope_parameters.rope_type", "'default'", "only 'yarn'"});
  expect_refused(ministral3({{"partial_rotary_factor", 0.5}}), {"partial_rotary_factor", "only 1"});
}

TEST(Families, SmolLM3DoesNotRotateEveryFourthLayer) {
  const auto rotates = [](const json& more) {
    std::vector<int> result;
    const DecoderSpec spec = read_spec(config_of("SmolLM3ForCausalLM", more));
    for (std::int64_t layer = 0; layer < spec.layers; ++layer)
      result.push_back(spec.layer(layer).rotation == LayerRotation::global ? 1 : 0);
    return result;
  };
  EXPECT_EQ(rotates(json::object()), (std::vector<int>{1, 1, 1, 0}));
  EXPECT_EQ(rotates({{"no_rope_layer_interval", 2}}), (std::vector<int>{1, 0, 1, 0}));
  EXPECT_EQ(rotates({{"no_rope_layers", {0, 1, 1, 1}}}), (std::vector<int>{0, 1, 1, 1}));
  EXPECT_EQ(rotates({{"no_rope_layers", nullptr}}), (std::vector<int>{1, 1, 1, 0}));
  const DecoderSpec plain = read_spec(config_of("SmolLM3ForCausalLM"));
  EXPECT_TRUE(plain.tied_embeddings);
  EXPECT_EQ(plain.rope.theta, 2e6);
  EXPECT_EQ(windows(plain), Windows(4, 0));
  const auto of = [](const json& more) { return read_spec(config_of("SmolLM3ForCausalLM", more)); };
  EXPECT_EQ(windows(of({{"use_sliding_window", true}, {"sliding_window", 7}})), (Windows{0, 0, 0, 7}));
  EXPECT_EQ(windows(of({{"use_sliding_window", false}, {"sliding_window", 7}})), Windows(4, 0));
  expect_refused(config_of("SmolLM3ForCausalLM", {{"no_rope_layers", {1, 0}}}),
                 {"no_rope_layers", "2 entries for 4 layers"});
  expect_refused(config_of("SmolLM3ForCausalLM", {{"no_rope_layers", json::array()}}), {"no_rope_layers", "0 entries"});
  expect_refused(config_of("SmolLM3ForCausalLM", {{"no_rope_layers", {1, 1, 2, 1}}}),
                 {"no_rope_layers", "1 for layers"});
}

TEST(Families, OlmoNormsWhatBlocksAddAndWholeProjections) {
  const DecoderSpec spec = read_spec(config_of("Olmo2ForCausalLM"));
  EXPECT_FALSE(spec.input_norms || spec.qk_norm || spec.tied_embeddings);
  EXPECT_TRUE(spec.output_norms && spec.projection_norm);
  EXPECT_FLOAT_EQ(spec.rms_epsilon, 1e-5f);
  EXPECT_EQ(spec.norm_offset, 0);
}

TEST(Families, Olmo3ScalesTheRotationOfLayersThatSeeAll) {
  const json yarn{{"rope_type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 16}};
  const auto of = [](const json& more) { return read_spec(config_of("Olmo3ForCausalLM", more)); };
  EXPECT_EQ(windows(of(json::object())), (Windows{4096, 4096, 4096, 0}));
  for (const json& more : {json{{"rope_theta", 500}, {"rope_scaling", yarn}, {"sliding_window", 7}},
                           json{{"rope_parameters",
                                 {{"full_attention",
                                   [&] {
                                     json full = yarn;
                                     full["rope_theta"] = 500;
                                     return full;
                                   }()},
                                  {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 500}}}}},
                                {"sliding_window", 7}}}) {
    const DecoderSpec spec = of(more);
    ASSERT_TRUE(spec.local_rope);
    EXPECT_EQ(spec.rope.scaling, RopeScaling::yarn);
    EXPECT_EQ(spec.rope.original_positions, 16);
    EXPECT_EQ(spec.local_rope->scaling, RopeScaling::none);
    EXPECT_EQ(spec.rope.theta, 500);
    EXPECT_EQ(spec.local_rope->theta, 500);
    for (std::int64_t layer = 0; layer < 4; ++layer)
      EXPECT_EQ(spec.layer(layer).rotation, layer == 3 ? LayerRotation::global : LayerRotation::local);
  }
  expect_refused(config_of("Olmo3ForCausalLM", {{"sliding_window", nullptr}}), {"sliding_window", "full_attention"});
  expect_refused(config_of("Olmo3ForCausalLM", {{"rope_parameters", yarn}}), {"rope_parameters", "sliding_attention"});
}

TEST(Families, GraniteMultiplies) {
  const DecoderSpec plain = read_spec(config_of("GraniteForCausalLM"));
  EXPECT_EQ(plain.score_scale(0), 1);  // its default, which is not 1 / sqrt(head_dim)
  EXPECT_EQ(plain.embedding_scale * plain.residual_scale * plain.logits_scale, 1);
  const DecoderSpec spec = read_spec(config_of("GraniteForCausalLM", {{"embedding_multiplier", 12},
                                                                      {"attention_multiplier", 0.0078125},
                                                                      {"residual_multiplier", 0.22},
                                                                      {"logits_scaling", 16}}));
  EXPECT_EQ(spec.embedding_scale, 12);
  EXPECT_EQ(spec.score_scale(0), 0.0078125f);
  EXPECT_EQ(spec.residual_scale, 0.22);
  EXPECT_EQ(spec.logits_scale, 1 / 16.0);
  expect_refused(config_of("GraniteForCausalLM", {{"logits_scaling", 0}}), {"logits_scaling", "positive"});
}

TEST(Families, Glm4RotatesHalfOfAHeadInPairsOfNeighbours) {
  const DecoderSpec spec = read_spec(config_of("Glm4ForCausalLM"));
  EXPECT_EQ(spec.head_dim, 128);
  EXPECT_EQ(spec.rope.rotary_dim, 64);
  EXPECT_EQ(spec.rope.pairs, RotaryPairs::neighbours);
  EXPECT_TRUE(spec.input_norms && spec.output_norms && spec.qkv_bias && !spec.o_bias);
  EXPECT_EQ(read_spec(config_of("Glm4ForCausalLM", {{"partial_rotary_factor", 0.25}})).rope.rotary_dim, 32);
  EXPECT_EQ(
      read_spec(config_of("Glm4ForCausalLM", {{"rope_parameters", {{"partial_rotary_factor", 1.0}}}})).rope.rotary_dim,
      128);
}

// A layer costs memory when it is listed, so how many there are is looked at before.
TEST(Families, ABillionLayersAreRefusedBeforeTheyAreListed) {
  for (const char* architecture :
       {"LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM", "SeedOssForCausalLM", "GptOssForCausalLM", "MixtralForCausalLM", "SmolLM3ForCausalLM",
        "Olmo2ForCausalLM", "Olmo3ForCausalLM", "GraniteForCausalLM", "Glm4ForCausalLM", "Gemma3ForCausalLM",
        "Ministral3ForCausalLM", "Gemma4ForCausalLM"})
    test::expect_in(test::refusal([&] {
                      read_spec(config_of(architecture, {{"num_hidden_layers", 1'000'000'000}, {"sliding_window", 8}}));
                    }),
                    {"num_hidden_layers", "1000000000 is more than any model has (at most 1024)"});
}

}  // namespace
}  // namespace so
