// The config.json of Nemotron 3 and Nemotron-H, and what its layers are made of.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/flops.h"
#include "model/initialize.h"
#include "model/parameters.h"
#include "model/sequence_split.h"
#include "model/stored_names.h"
#include "support/errors.h"

namespace so {
namespace {

using nlohmann::json;

DecoderSpec read_nemotron(const json& more = json::object()) {
  json config{{"architectures", {"NemotronHForCausalLM"}}};
  config.update(more);
  return read_decoder_spec(config.dump(), "config.json");
}

TEST(NemotronH, WithoutKeysIsThatOfTransformers) {
  const DecoderSpec s = read_nemotron();
  EXPECT_EQ(s.vocab, 131072);
  EXPECT_EQ(s.hidden, 4096);
  EXPECT_EQ(s.layers, 4);
  EXPECT_EQ(s.heads, 32);
  EXPECT_EQ(s.kv_heads, 8);
  EXPECT_EQ(s.head_dim, 128);
  EXPECT_EQ(s.intermediate, 21504);
  EXPECT_EQ(s.max_positions, 4096);
  EXPECT_FLOAT_EQ(s.rms_epsilon, 1e-5f);
  EXPECT_EQ(s.gate, MlpActivation::relu_squared);
  EXPECT_FALSE(s.tied_embeddings || s.qkv_bias || s.o_bias || s.mlp_bias);
  const StateSpaceSpec& m = s.state_space;
  EXPECT_EQ(m.heads, 128);
  EXPECT_EQ(m.head_dim, 64);
  EXPECT_EQ(m.groups, 8);
  EXPECT_EQ(m.state, 128);
  EXPECT_EQ(m.convolution, 4);
  EXPECT_TRUE(m.convolution_bias);
  EXPECT_EQ(m.least_step, 0.001);
  const ExpertSpec& e = s.experts;
  EXPECT_EQ(e.count, 8);
  EXPECT_EQ(e.per_token, 2);
  EXPECT_EQ(e.intermediate, 7688);
  EXPECT_EQ(e.shared_intermediate, 7688);
  EXPECT_EQ(e.scale, 1);
  EXPECT_EQ(e.scores, RouterRule::Scores::sigmoid);
  EXPECT_EQ(e.activation.kind, ExpertActivation::Kind::relu_squared);
  EXPECT_TRUE(e.renormalized && e.selection_bias && !e.shared_gate && !e.stacked && e.balance == 0);
  EXPECT_TRUE(s.is_state_space(0) && s.attends(2));
  EXPECT_TRUE(s.layer(1).experts && !s.has_mixer(1) && !s.has_mixer(3) && !s.layer(3).experts);
  for (std::int64_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(s.layer(layer).mlp, layer % 2 == 1) << layer;
    EXPECT_EQ(s.layer(layer).rotation, LayerRotation::none) << layer;
  }
}

// The kinds of layers by both spellings of their names, under both keys, and by letters.
TEST(NemotronH, NamesItsLayersInFourWays) {
  const std::vector<LayerSpec> layers = read_nemotron({{"hybrid_override_pattern", "M*E-M"}}).layer_specs;
  ASSERT_EQ(layers.size(), 5u);
  EXPECT_EQ(layers[0].mixer, TokenMixer::state_space);
  EXPECT_EQ(layers[1].mixer, TokenMixer::attention);
  EXPECT_TRUE(layers[2].experts && layers[2].mixer == TokenMixer::none && layers[3].mlp && !layers[3].experts);
  const json names{"linear_attention", "full_attention", "moe", "mlp", "linear_attention"},
      old{"mamba", "attention", "moe", "mlp", "mamba"};
  for (const char* key : {"layers_block_type", "layer_types"})
    for (const json& value : {names, old}) EXPECT_EQ(read_nemotron({{key, value}}).layer_specs, layers);
  EXPECT_EQ(
      read_nemotron({{"layer_types", old}, {"hybrid_override_pattern", "M*E-M"}, {"num_hidden_layers", 5}}).layer_specs,
      layers);
}

TEST(NemotronH, RefusesWhatItIsNot) {
  const auto refused = [](const json& more, const char* key, const char* why) {
    test::expect_in(test::refusal([&] { read_nemotron(more); }), {std::string("config.json: ") + key, why});
  };
  refused({{"hybrid_override_pattern", "M*O"}}, "hybrid_override_pattern", "'O'");
  refused({{"hybrid_override_pattern", ""}}, "hybrid_override_pattern", "no layer");
  refused({{"hybrid_override_pattern", std::string(2000, 'M')}}, "hybrid_override_pattern", "at most 1024");
  refused({{"layers_block_type", {"conv"}}}, "layers_block_type", "'conv'");
  refused({{"layers_block_type", {"moe"}}, {"hybrid_override_pattern", "M"}}, "hybrid_override_pattern",
          "layers_block_type");
  refused({{"hybrid_override_pattern", "ME"}, {"num_hidden_layers", 3}}, "num_hidden_layers", "not the 2");
  for (const char* key : {"attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias", "residual_in_fp32"})
    refused({{key, true}}, key, "only false");
  for (const char* key : {"n_group", "topk_group", "n_shared_experts"}) refused({{key, 2}}, key, "only 1");
  refused({{"moe_latent_size", 1024}}, "moe_latent_size", "not supported");
  refused({{"sliding_window", 128}}, "sliding_window", "not supported");
  refused({{"mlp_hidden_act", "silu"}}, "mlp_hidden_act", "relu2");
  refused({{"mamba_hidden_act", "gelu"}}, "mamba_hidden_act", "silu");
  refused({{"mamba_ssm_cache_dtype", "bfloat16"}}, "mamba_ssm_cache_dtype", "float32");
  refused({{"hidden_dropout", 0.1}}, "hidden_dropout", "dropout");
  refused({{"norm_eps", 1e-6}}, "norm_eps", "layer_norm_epsilon");
  refused({{"n_groups", 3}}, "n_groups", "must divide");
  refused({{"mamba_n_groups", 3}}, "mamba_n_groups", "must divide");
  refused({{"conv_kernel", 9}}, "conv_kernel", "at most 8");
  refused({{"mamba_num_heads", 1 << 28}}, "mamba_num_heads", "more than any model");
  refused({{"ssm_state_size", 1 << 28}}, "ssm_state_size", "more than any model");
  refused({{"num_local_experts", 4}}, "num_local_experts", "n_routed_experts");
}

// Steps have the least size that transformers gives them; time_step_limit, which nothing reads there, is as Python or
// transformers writes an infinity.
TEST(NemotronH, TakesInfiniteLimitsThatNothingReads) {
  EXPECT_EQ(read_nemotron({{"time_step_min", 0.25}}).state_space.least_step, 0.25);
  EXPECT_EQ(read_nemotron({{"mamba_dt_min", 0.5}}).state_space.least_step, 0.5);
  for (const char* limit : {"[0.0, Infinity]", R"([0.0, {"__float__": "Infinity"}])"}) {
    const std::string text =
        fmt::format(R"({{"architectures": ["NemotronHForCausalLM"], "time_step_limit": {}}})", limit);
    EXPECT_EQ(read_decoder_spec(text, "config.json").layers, 4) << limit;
  }
  const char* infinite = R"({"architectures": ["NemotronHForCausalLM"], "time_step_max": Infinity})";
  test::expect_in(test::refusal([&] { read_decoder_spec(infinite, "config.json"); }), {"time_step_max", "fp32"});
}

DecoderSpec small_nemotron() {
  return read_nemotron({{"hybrid_override_pattern", "M*E-"},
                        {"hidden_size", 64},
                        {"vocab_size", 100},
                        {"num_attention_heads", 4},
                        {"num_key_value_heads", 2},
                        {"head_dim", 16},
                        {"intermediate_size", 32},
                        {"n_routed_experts", 4},
                        {"moe_intermediate_size", 24},
                        {"moe_shared_expert_intermediate_size", 40},
                        {"mamba_num_heads", 6},
                        {"mamba_head_dim", 8},
                        {"ssm_state_size", 10},
                        {"n_groups", 2}});
}

// A layer has the parameters of its one block. What decays is what transformers' get_decay_parameter_names() says,
// which goes by names: the last norm does.
TEST(NemotronH, LayersHaveOneBlock) {
  const DecoderSpec spec = small_nemotron();
  const ParameterLayout layout(make_parameters(spec));
  const ParameterIndex index = make_parameter_index(spec, layout);
  const auto name = [&](Joined p) { return layout.parameter(p.first).name; };
  const ParameterIndex::Layer &space = index.layers[0], &attention = index.layers[1], &experts = index.layers[2],
                              &mlp = index.layers[3];
  EXPECT_EQ(name(space.input_norm), "backbone.layers.0.norm.weight");
  EXPECT_EQ(name(mlp.mlp_norm), "backbone.layers.3.norm.weight");
  EXPECT_FALSE(space.mlp_norm || space.gate_up || attention.gate_up || attention.mlp_norm);
  EXPECT_FALSE(experts.input_norm || experts.qkv || mlp.o || mlp.router || space.q_norm);
  EXPECT_EQ(layout.parameter(space.qkv.first).shape, (std::vector<std::int64_t>{48 + 88 + 6, 64}));
  EXPECT_EQ(mlp.gate_up.count, 1);
  EXPECT_EQ(experts.gate_up.count, 4);
  EXPECT_EQ(name(experts.gate_up), "backbone.layers.2.mixer.experts.0.up_proj.weight");
  EXPECT_EQ(experts.shared_gate_up.count, 1);
  for (const Joined decays : {space.a_log, space.skip, space.convolution, space.qkv, space.o, mlp.gate_up})
    EXPECT_TRUE(layout.parameter(decays.first).decay) << name(decays);
  for (const Joined stays : {space.input_norm, space.dt_bias, space.convolution_bias, space.state_norm, mlp.mlp_norm})
    EXPECT_FALSE(layout.parameter(stays.first).decay) << name(stays);
  EXPECT_TRUE(layout.parameter(index.final_norm).decay);
}

TEST(NemotronH, CountsTheProductsOfOneBlock) {
  const DecoderSpec spec = small_nemotron();
  EXPECT_EQ(matmul_parameters(spec, 0), (142 + 48) * 64);
  EXPECT_EQ(matmul_parameters(spec, 1), (128 + 64) * 64);
  EXPECT_EQ(matmul_parameters(spec, 2), (2 * (2 * 24 + 40) + 4) * 64);
  EXPECT_EQ(matmul_parameters(spec, 3), 2 * 32 * 64);
  const std::vector<std::int32_t> documents{0, 10};
  EXPECT_EQ(mixing_flops(spec, 0, documents), 4 * 48 * 10 * 10);
  EXPECT_EQ(mixing_flops(spec, 2, documents), 0);
  EXPECT_EQ(mixing_flops(spec, 3, documents), 0);
}

TEST(NemotronH, SplitsSequencesByGroups) {
  EXPECT_NO_THROW(require_sequence_split(small_nemotron(), 2, "it"));
  test::expect_in(test::refusal([&] { require_sequence_split(small_nemotron(), 4, "it"); }),
                  {"--sequence_parallel_size 4", "state spaces 2 groups", "use one of 1, 2"});
}

TEST(NemotronH, CarriesWhatIsNoParameter) {
  const DecoderSpec spec = small_nemotron();
  const StoredNames names = possible_names(spec).front();
  EXPECT_TRUE(names.is_constant("backbone.layers.2.mixer.gate.e_score_correction_bias"));
  EXPECT_TRUE(names.is_prediction_head("mtp.layers.0.mixer.q_proj.weight"));
  for (const Parameter& p : make_parameters(spec)) EXPECT_FALSE(names.carries(p.name)) << p.name;
}

// As transformers: A is 1, 2, 3, ..., D is 1, and steps begin between the least and the most.
TEST(NemotronH, BeginsAsTransformers) {
  const DecoderSpec spec = small_nemotron();
  const auto values = [&](const char* name, std::int64_t size, std::int64_t begin = 0) {
    std::vector<float> x(static_cast<std::size_t>(size - begin));
    initialize(spec, {name, {size}}, 1, begin, x);
    return x;
  };
  const std::vector<float> a_log = values("backbone.layers.0.mixer.A_log", 6);
  for (std::size_t i = 0; i < a_log.size(); ++i) EXPECT_FLOAT_EQ(a_log[i], std::log(static_cast<float>(i + 1)));
  EXPECT_EQ(values("backbone.layers.0.mixer.A_log", 6, 4), std::vector<float>(a_log.begin() + 4, a_log.end()));
  EXPECT_EQ(values("backbone.layers.0.mixer.D", 6), std::vector<float>(6, 1));
  EXPECT_EQ(values("backbone.layers.0.mixer.norm.weight", 48), std::vector<float>(48, 1));
  EXPECT_EQ(values("backbone.layers.0.mixer.conv1d.bias", 88), std::vector<float>(88, 0));
  double low = 1, high = 0;
  for (const float bias : values("backbone.layers.0.mixer.dt_bias", 2000)) {
    const double step = std::log1p(std::exp(static_cast<double>(bias)));
    low = std::min(low, step), high = std::max(high, step);
  }
  EXPECT_GE(low, 0.001 * (1 - 1e-4));
  EXPECT_LE(high, 0.1 * (1 + 1e-4));
  EXPECT_LT(low, 0.0011);
  EXPECT_GT(high, 0.09);
}

}  // namespace
}  // namespace so
