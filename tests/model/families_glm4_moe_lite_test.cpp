// The config.json of GLM-4.7-Flash, and the tensors of its files that are no parameters.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/config.h"
#include "model/parameters.h"
#include "model/stored_names.h"
#include "support/errors.h"

namespace so {
namespace {

using nlohmann::json;

DecoderSpec read_latent(const json& more = json::object()) {
  json config{{"architectures", {"Glm4MoeLiteForCausalLM"}}};
  config.update(more);
  return read_decoder_spec(config.dump(), "config.json");
}

TEST(Glm4MoeLite, WithoutKeysIsThatOfTransformers) {
  const DecoderSpec s = read_latent();
  EXPECT_EQ(s.vocab, 154880);
  EXPECT_EQ(s.hidden, 2048);
  EXPECT_EQ(s.layers, 47);
  EXPECT_EQ(s.heads, 20);
  EXPECT_EQ(s.kv_heads, 20);
  EXPECT_EQ(s.head_dim, 256);
  EXPECT_EQ(s.intermediate, 10240);
  EXPECT_EQ(s.max_positions, 202752);
  EXPECT_FLOAT_EQ(s.rms_epsilon, 1e-5f);
  EXPECT_FALSE(s.tied_embeddings);
  const LatentSpec& l = s.latent;
  EXPECT_EQ(l.q_rank, 768);
  EXPECT_EQ(l.kv_rank, 512);
  EXPECT_EQ(l.still_dim, 192);
  EXPECT_EQ(l.rotary_dim, 64);
  EXPECT_EQ(l.v_dim, 256);
  EXPECT_FLOAT_EQ(l.norm_epsilon, 1e-6f) << "the latents' norms have their class's own";
  EXPECT_EQ(s.rope.rotary_dim, 64);
  EXPECT_EQ(s.rope.theta, 10000);
  EXPECT_EQ(s.rope.pairs, RotaryPairs::neighbours);
  EXPECT_FLOAT_EQ(s.score_scale(0), 1.0f / 16);
  const ExpertSpec& e = s.experts;
  EXPECT_EQ(e.count, 64);
  EXPECT_EQ(e.per_token, 4);
  EXPECT_EQ(e.intermediate, 1536);
  EXPECT_EQ(e.shared_intermediate, 1536);
  EXPECT_EQ(e.scale, 1.8);
  EXPECT_EQ(e.scores, RouterRule::Scores::sigmoid);
  EXPECT_TRUE(e.renormalized && e.selection_bias && !e.shared_gate && !e.stacked && e.balance == 0);
  for (std::int64_t layer = 0; layer < s.layers; ++layer) {
    EXPECT_EQ(s.layer(layer).experts, layer > 0) << layer;
    EXPECT_TRUE(s.is_latent(layer)) << layer;
  }
  // Latents and what rotates of the keys, the heads' last product, five MLPs, and the router; the second products.
  EXPECT_EQ(matmul_parameters(s, 1), (768 + 512 + 64 + 5120 + 5 * 3 * 1536 + 64) * 2048 + 768 * 5120 + 512 * 20 * 448);
  EXPECT_EQ(parameter_count(s), 29'943'390'976);
}

TEST(Glm4MoeLite, ReadsWhatIsItsOwn) {
  EXPECT_EQ(read_latent({{"rope_interleave", false}}).rope.pairs, RotaryPairs::halves);
  EXPECT_FALSE(read_latent({{"norm_topk_prob", false}}).experts.renormalized);
  EXPECT_EQ(read_latent({{"routed_scaling_factor", 2.5}}).experts.scale, 2.5);
  EXPECT_EQ(read_latent({{"n_shared_experts", 3}}).experts.shared_intermediate, 3 * 1536);
  const DecoderSpec s = read_latent({{"num_hidden_layers", 3}, {"mlp_layer_types", {"sparse", "dense", "sparse"}}});
  EXPECT_TRUE(s.layer(0).experts && !s.layer(1).experts && s.layer(2).experts);
  EXPECT_FALSE(read_latent({{"first_k_dense_replace", 1}}).layer(0).experts);
  const json two{
      {"num_hidden_layers", 3}, {"first_k_dense_replace", 2}, {"mlp_layer_types", {"dense", "dense", "sparse"}}};
  EXPECT_FALSE(read_latent(two).layer(1).experts);
  // As in transformers, YaRN's mscale_all_dim makes scores larger, and not the angles' cosines.
  const json yarn{{"rope_type", "yarn"}, {"rope_theta", 10000.0}, {"factor", 40.0},
                  {"mscale", 1.0},       {"mscale_all_dim", 1.0}, {"original_max_position_embeddings", 4096}};
  const DecoderSpec stretched = read_latent({{"rope_parameters", yarn}});
  const double m = 0.1 * std::log(40.0) + 1;
  EXPECT_NEAR(stretched.attention_scale, m * m / 16, 1e-12);
  EXPECT_EQ(stretched.rope.attention_factor, 1);
}

TEST(Glm4MoeLite, RefusesWhatItIsNot) {
  const auto refused = [](const char* key, const json& value, const char* why) {
    test::expect_in(test::refusal([&] { read_latent({{key, value}}); }), {std::string("config.json: ") + key, why});
  };
  refused("q_lora_rank", nullptr, "without a latent");
  refused("v_head_dim", 128, "128 is not supported");
  refused("num_key_value_heads", 4, "must equal num_attention_heads");
  refused("attention_bias", true, "not supported");
  refused("head_dim", 256, "must equal qk_rope_head_dim");
  refused("n_group", 2, "only 1");
  refused("topk_group", 2, "only 1");
  refused("topk_method", "greedy", "noaux_tc");
  refused("scoring_func", "softmax", "sigmoid");
  refused("num_local_experts", 8, "n_routed_experts");
  refused("n_routed_experts", 2000, "at most 1024");
  refused("q_lora_rank", 1 << 25, "more than any model has");
  refused("n_shared_experts", 5000, "more than any model has");
  refused("qk_nope_head_dim", 1 << 25, "wider than any model has");
  refused("partial_rotary_factor", 0.5, "only 1");
  refused("first_k_dense_replace", 2, "mlp_layer_types");
  refused("mlp_layer_types", {"dense"}, "1 entries for 47 layers");
  test::expect_in(test::refusal([&] {
                    read_latent({{"num_hidden_layers", 1}, {"mlp_layer_types", {"linear"}}});
                  }),
                  {"mlp_layer_types", "'linear'"});
}

// The bias of the selection is no parameter, nor is the layer that predicts further tokens.
TEST(Glm4MoeLite, CarriesWhatIsNoParameter) {
  const DecoderSpec spec = read_latent({{"num_hidden_layers", 3}});
  const std::vector<StoredNames> all = possible_names(spec);
  ASSERT_EQ(all.size(), 1u);
  const StoredNames& names = all.front();
  EXPECT_EQ(selection_bias_names(spec), (std::vector<std::string>{"", "model.layers.1.mlp.gate.e_score_correction_bias",
                                                                  "model.layers.2.mlp.gate.e_score_correction_bias"}));
  EXPECT_TRUE(names.is_constant("model.layers.1.mlp.gate.e_score_correction_bias"));
  EXPECT_FALSE(names.carries("model.layers.0.mlp.gate.e_score_correction_bias"));
  EXPECT_FALSE(names.is_prediction_head("model.layers.1.mlp.gate.e_score_correction_bias"));
  for (const char* name : {"model.layers.3.eh_proj.weight", "model.layers.3.mlp.gate.e_score_correction_bias"})
    EXPECT_TRUE(names.is_prediction_head(name) && names.carries(name)) << name;
  for (const char* name :
       {"model.layers.2.eh_proj.weight", "model.layers.x.weight", "model.layers.33", "lm_head.weight"})
    EXPECT_FALSE(names.carries(name)) << name;
  for (const Parameter& p : make_parameters(spec)) EXPECT_FALSE(names.carries(p.name)) << p.name;
}

// Of transformers' get_decay_parameter_names(): the latents' norms do not decay. The two first products are one matrix.
TEST(Glm4MoeLite, HasOneFirstProduct) {
  const DecoderSpec spec = read_latent({{"num_hidden_layers", 2},
                                        {"hidden_size", 64},
                                        {"vocab_size", 100},
                                        {"intermediate_size", 32},
                                        {"n_routed_experts", 4},
                                        {"num_experts_per_tok", 2}});
  const ParameterLayout layout(make_parameters(spec));
  const ParameterIndex::Layer layer = make_parameter_index(spec, layout).layers[1];
  EXPECT_EQ(layout.parameter(layer.qkv.first).name, "model.layers.1.self_attn.q_a_proj.weight");
  std::vector<float> weights(static_cast<std::size_t>(layout.elements()));
  EXPECT_EQ(layout.view(weights.data(), DType::f32, layer.qkv.first, layer.qkv.count).dim(0), 768 + 512 + 64);
  for (const Joined norm : {layer.q_latent_norm, layer.kv_latent_norm})
    EXPECT_FALSE(layout.parameter(norm.first).decay);
  for (const Joined matrix : {layer.q_heads, layer.kv_heads, layer.o})
    EXPECT_TRUE(layout.parameter(matrix.first).decay);
}

}  // namespace
}  // namespace so
