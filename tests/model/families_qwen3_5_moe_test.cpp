// The config.json of Qwen's models with gated delta layers and experts.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/config.h"
#include "model/parameters.h"
#include "model/stored_names.h"
#include "support/errors.h"

namespace so {
namespace {

using nlohmann::json;

DecoderSpec read_experts(const json& config) { return read_decoder_spec(config.dump(), "config.json"); }

json delta_experts(const char* architecture, const json& more = json::object()) {
  json config{{"architectures", {architecture}}, {"num_hidden_layers", 4}};
  config.update(more);
  return config;
}

std::vector<bool> layers_with_experts(const DecoderSpec& spec) {
  std::vector<bool> result;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) result.push_back(spec.layer(layer).experts);
  return result;
}

TEST(Qwen35Experts, WithoutKeysAreThoseOfTransformers) {
  const DecoderSpec s = read_experts(delta_experts("Qwen3_5MoeForCausalLM"));
  EXPECT_EQ(s.vocab, 248320);
  EXPECT_EQ(s.hidden, 2048);
  EXPECT_EQ(s.heads, 16);
  EXPECT_EQ(s.kv_heads, 2);
  EXPECT_EQ(s.head_dim, 256);
  EXPECT_EQ(s.rope.rotary_dim, 64);
  EXPECT_EQ(s.max_positions, 32768);
  EXPECT_FLOAT_EQ(s.rms_epsilon, 1e-6f);
  EXPECT_EQ(s.delta.v_heads, 32);
  EXPECT_TRUE(s.output_gate && s.qk_norm && !s.tied_embeddings && s.norm_offset == 1);
  EXPECT_TRUE(s.is_delta(0) && s.is_delta(2) && !s.is_delta(3));
  EXPECT_EQ(layers_with_experts(s), std::vector<bool>(4, true));
  const ExpertSpec& e = s.experts;
  EXPECT_EQ(e.count, 256);
  EXPECT_EQ(e.per_token, 8);
  EXPECT_EQ(e.intermediate, 512);
  EXPECT_EQ(e.shared_intermediate, 512);
  EXPECT_TRUE(e.renormalized && e.stacked && e.shared_gate && !e.biases && !e.router_bias);
  EXPECT_EQ(e.layout, ExpertLayout::out_in);
  EXPECT_EQ(e.balance, 0);
  EXPECT_EQ(read_experts(delta_experts("Qwen3_5MoeForCausalLM", {{"output_router_logits", true}})).experts.balance,
            0.001);
  EXPECT_EQ(s.mlp_width(0), 9 * 512);
  EXPECT_EQ(s.shared_width(0), 512);
  // The projections and the last product of a delta layer, nine MLPs, the router and the gate.
  EXPECT_EQ(matmul_parameters(s, 0), (12352 + 4096 + 9 * 3 * 512 + 256 + 1) * 2048);
}

TEST(Qwen35Experts, RefusesWhatItIsNot) {
  const auto refused = [](const char* key, const json& value, const char* why) {
    const json config = delta_experts("Qwen3_5MoeForCausalLM", {{key, value}});
    test::expect_in(test::refusal([&] { read_experts(config); }), {std::string("config.json: ") + key, why});
  };
  refused("norm_topk_prob", false, "only true");
  refused("decoder_sparse_step", 2, "not supported");
  refused("mlp_only_layers", {1}, "not supported");
  refused("num_experts_per_tok", 33, "at most 32");
  refused("num_experts", 2000, "at most 1024");
  refused("shared_expert_intermediate_size", 0, "positive");
  refused("shared_expert_intermediate_size", 1 << 25, "more than any model has");
  refused("attn_output_gate", false, "only true");
  const json published{{"norm_topk_prob", true}, {"decoder_sparse_step", 1}, {"mlp_only_layers", json::array()}};
  EXPECT_EQ(read_experts(delta_experts("Qwen3_5MoeForCausalLM", published)).experts.count, 256);
}

TEST(Qwen3Next, WithoutKeysIsThatOfTransformers) {
  const DecoderSpec s = read_experts(delta_experts("Qwen3NextForCausalLM"));
  EXPECT_EQ(s.vocab, 151936);
  EXPECT_EQ(s.hidden, 2048);
  EXPECT_EQ(s.heads, 16);
  EXPECT_EQ(s.kv_heads, 2);
  EXPECT_EQ(s.head_dim, 256);
  EXPECT_EQ(s.intermediate, 5632);
  EXPECT_EQ(s.rope.rotary_dim, 64);
  EXPECT_TRUE(s.delta.by_key_head && s.output_gate && s.norm_offset == 1);
  EXPECT_TRUE(s.is_delta(0) && s.is_delta(2) && !s.is_delta(3));
  EXPECT_EQ(layers_with_experts(s), std::vector<bool>(4, true));
  EXPECT_EQ(s.experts.count, 512);
  EXPECT_EQ(s.experts.per_token, 10);
  EXPECT_EQ(s.experts.intermediate, 512);
  EXPECT_EQ(s.experts.shared_intermediate, 512);
  EXPECT_TRUE(s.experts.renormalized && s.experts.shared_gate && !s.experts.stacked);
}

TEST(Qwen3Next, ReadsWhatIsItsOwn) {
  const auto read = [](const json& more) { return read_experts(delta_experts("Qwen3NextForCausalLM", more)); };
  EXPECT_FALSE(read({{"norm_topk_prob", false}}).experts.renormalized);
  EXPECT_EQ(layers_with_experts(read({{"decoder_sparse_step", 2}})), (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(layers_with_experts(read({{"mlp_only_layers", {0, 3}}})), (std::vector<bool>{false, true, true, false}));
  EXPECT_EQ(read({{"partial_rotary_factor", 0.5}}).rope.rotary_dim, 128);
  EXPECT_EQ(read({{"output_router_logits", true}, {"router_aux_loss_coef", 0.02}}).experts.balance, 0.02);
  EXPECT_EQ(read({{"mlp_only_layers", {0}}}).mlp_width(0), 5632);
  test::expect_in(test::refusal([&] { read({{"hidden_act", "gelu"}}); }), {"hidden_act", "only 'silu'"});
}

// A delta layer's two products are one matrix, with the rows that Qwen3.5's four have.
TEST(Qwen3Next, HasTwoProductsInADeltaLayer) {
  const DecoderSpec spec = read_experts(
      delta_experts("Qwen3NextForCausalLM",
                    {{"hidden_size", 64}, {"vocab_size", 100}, {"num_experts", 4}, {"num_experts_per_tok", 2}}));
  const ParameterLayout layout(make_parameters(spec));
  const ParameterIndex::Layer layer = make_parameter_index(spec, layout).layers[0];
  EXPECT_EQ(layout.parameter(layer.qkv.first).name, "model.layers.0.linear_attn.in_proj_qkvz.weight");
  EXPECT_EQ(layer.qkv.count, 2);
  EXPECT_EQ(layout.parameter(layer.qkv.first + 1).shape, (std::vector<std::int64_t>{64, 64}));
  std::vector<float> weights(static_cast<std::size_t>(layout.elements()));
  EXPECT_EQ(layout.view(weights.data(), DType::f32, layer.qkv.first, 2).dim(0), spec.delta.projected_width());
  EXPECT_EQ(layout.find("model.layers.0.linear_attn.in_proj_qkv.weight"), -1);
}

// As Qwen3.5-35B-A3B is published: the text model's tensors beside a vision tower's.
TEST(Qwen35Experts, StandInsideAModelOfImagesAndText) {
  const json config{
      {"architectures", {"Qwen3_5MoeForConditionalGeneration"}},
      {"model_type", "qwen3_5_moe"},
      {"tie_word_embeddings", false},
      {"text_config", {{"model_type", "qwen3_5_moe_text"}, {"num_hidden_layers", 40}, {"output_router_logits", true}}},
      {"vision_config", {{"model_type", "qwen3_5_moe"}}}};
  const DecoderSpec spec = read_experts(config);
  EXPECT_EQ(spec.architecture, "Qwen3_5MoeForCausalLM");
  EXPECT_EQ(spec.wrapper, "Qwen3_5MoeForConditionalGeneration");
  EXPECT_EQ(spec.experts.balance, 0.001);
  EXPECT_EQ(parameter_count(spec), 34'660'610'688);
  const std::vector<StoredNames> names = possible_names(spec);
  ASSERT_EQ(names.size(), 1u);
  EXPECT_EQ(names[0].stored("model.layers.0.mlp.experts.down_proj"),
            "model.language_model.layers.0.mlp.experts.down_proj");
  EXPECT_EQ(names[0].stored("lm_head.weight"), "lm_head.weight");
  EXPECT_TRUE(names[0].carries("model.visual.patch_embed.proj.weight"));
  EXPECT_TRUE(names[0].carries("mtp.fc.weight"));
}

// Of a family that is published in both ways, files say which they have; the parameters lie in the same order.
TEST(Qwen35Experts, HaveTheNamesThatFilesHave) {
  DecoderSpec spec = read_experts(
      delta_experts("Qwen3_5MoeForCausalLM",
                    {{"hidden_size", 64}, {"vocab_size", 100}, {"num_experts", 4}, {"num_experts_per_tok", 2}}));
  ASSERT_TRUE(has_either_expert_names(spec));
  const auto named = [&](const char* there) {
    DecoderSpec found = spec;
    find_expert_names(found, [&](std::string_view name) { return name == there; });
    return found;
  };
  const DecoderSpec stacked = named("model.layers.0.mlp.experts.down_proj"),
                    apart = named("model.layers.0.mlp.experts.0.down_proj.weight");
  EXPECT_TRUE(stacked.experts.stacked);
  EXPECT_FALSE(apart.experts.stacked);
  EXPECT_TRUE(named("model.norm.weight").experts.stacked) << "nothing is known but what is usual";
  spec.wrapper = "Qwen3_5MoeForConditionalGeneration";
  EXPECT_FALSE(named("model.language_model.layers.0.mlp.experts.0.down_proj.weight").experts.stacked);

  const ParameterLayout one(make_parameters(stacked)), other(make_parameters(apart));
  EXPECT_EQ(one.elements(), other.elements());
  EXPECT_EQ(parameter_count(stacked), parameter_count(apart));
  for (const auto& [in_one, in_other] :
       {std::pair("gate_up_proj", "0.gate_proj.weight"), {"down_proj", "0.down_proj.weight"}}) {
    const std::string prefix = "model.layers.3.mlp.experts.";
    EXPECT_EQ(one.range(one.find(prefix + in_one)).begin, other.range(other.find(prefix + in_other)).begin);
  }
  for (const ParameterLayout* layout : {&one, &other}) {
    const DecoderSpec& of = layout == &one ? stacked : apart;
    const ParameterIndex::Layer layer = make_parameter_index(of, *layout).layers[0];
    EXPECT_EQ(layout->range(layer.gate_up.first + layer.gate_up.count - 1).end, layout->range(layer.down.first).begin);
  }

  DecoderSpec moe = read_experts({{"architectures", {"Qwen3MoeForCausalLM"}},
                                  {"vocab_size", 100},
                                  {"hidden_size", 32},
                                  {"num_hidden_layers", 2},
                                  {"num_attention_heads", 4},
                                  {"intermediate_size", 48},
                                  {"max_position_embeddings", 64},
                                  {"num_experts", 4},
                                  {"num_experts_per_tok", 2},
                                  {"moe_intermediate_size", 8}});
  EXPECT_FALSE(has_either_expert_names(moe));
  find_expert_names(moe, [](std::string_view) { return true; });
  EXPECT_FALSE(moe.experts.stacked);
}

}  // namespace
}  // namespace so
