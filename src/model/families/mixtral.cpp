// MixtralForCausalLM: Mistral with a mixture of experts in place of every layer's MLP; experts are stored one by one.
#include <array>

#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

constexpr std::array<TensorName, 13> names{{
    {Role::embedding, "model.embed_tokens.weight"},
    {Role::input_norm, "model.layers.{}.input_layernorm.weight"},
    {Role::q, "model.layers.{}.self_attn.q_proj.weight"},
    {Role::k, "model.layers.{}.self_attn.k_proj.weight"},
    {Role::v, "model.layers.{}.self_attn.v_proj.weight"},
    {Role::o, "model.layers.{}.self_attn.o_proj.weight"},
    {Role::mlp_norm, "model.layers.{}.post_attention_layernorm.weight"},
    {Role::router, "model.layers.{}.block_sparse_moe.gate.weight"},
    {Role::expert_gate, "model.layers.{}.block_sparse_moe.experts.{}.w1.weight"},
    {Role::expert_up, "model.layers.{}.block_sparse_moe.experts.{}.w3.weight"},
    {Role::expert_down, "model.layers.{}.block_sparse_moe.experts.{}.w2.weight"},
    {Role::final_norm, "model.norm.weight"},
    {Role::lm_head, "lm_head.weight"},
}};

void read(ConfigReader& config, DecoderSpec& spec) {
  spec.qkv_bias = spec.o_bias = false;  // transformers does not read attention_bias for this class
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  config.only_zero("router_jitter_noise", "noise in the router's input is not supported; set it to 0");
  ExpertSpec& e = spec.experts;
  e.count = config.positive_int(config.has("num_experts") ? "num_experts" : "num_local_experts", 8);
  e.per_token = config.positive_int("num_experts_per_tok", 2);
  e.intermediate = spec.intermediate;
  e.renormalized = true;
  read_router_loss(config, spec);
  LayerSpec every{.experts = true};
  if (config.has("sliding_window")) every.window = config.positive_int("sliding_window");
  spec.layer_specs.assign(static_cast<std::size_t>(spec.layers), every);
}

}  // namespace

const Family mixtral_family{.architecture = "MixtralForCausalLM",
                            .model_type = "mixtral",
                            .names = names,
                            .read = read,
                            .kv_heads = 8,
                            .rms_norm_eps = 1e-5,
                            .rope_theta = 1000000};

}  // namespace so
