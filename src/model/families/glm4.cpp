// Glm4ForCausalLM: GLM-4-0414. Norms before and after attention and MLP, gate and up in one matrix, and a part of each
// head rotates, in pairs of neighbours.
#include <array>

#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

constexpr std::array<TensorName, 16> names{{
    {Role::embedding, "model.embed_tokens.weight"},
    {Role::input_norm, "model.layers.{}.input_layernorm.weight"},
    {Role::q, "model.layers.{}.self_attn.q_proj.weight"},
    {Role::k, "model.layers.{}.self_attn.k_proj.weight"},
    {Role::v, "model.layers.{}.self_attn.v_proj.weight"},
    {Role::q_bias, "model.layers.{}.self_attn.q_proj.bias"},
    {Role::k_bias, "model.layers.{}.self_attn.k_proj.bias"},
    {Role::v_bias, "model.layers.{}.self_attn.v_proj.bias"},
    {Role::o, "model.layers.{}.self_attn.o_proj.weight"},
    {Role::attention_output_norm, "model.layers.{}.post_self_attn_layernorm.weight"},
    {Role::mlp_norm, "model.layers.{}.post_attention_layernorm.weight"},
    {Role::gate_up, "model.layers.{}.mlp.gate_up_proj.weight"},
    {Role::down, "model.layers.{}.mlp.down_proj.weight"},
    {Role::mlp_output_norm, "model.layers.{}.post_mlp_layernorm.weight"},
    {Role::final_norm, "model.norm.weight"},
    {Role::lm_head, "lm_head.weight"},
}};

void read(ConfigReader& config, DecoderSpec& spec) {
  if (spec.head_dim == 0) spec.head_dim = 128;
  spec.qkv_bias = config.boolean("attention_bias", true);
  spec.o_bias = false;
  spec.output_norms = true;
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  spec.rope.pairs = RotaryPairs::neighbours;
}

}  // namespace

const Family glm4_family{.architecture = "Glm4ForCausalLM",
                         .model_type = "glm4",
                         .names = names,
                         .read = read,
                         .kv_heads = 2,
                         .rms_norm_eps = 1.5625e-7,
                         .partial_rotary = true,
                         .rotary_part = 0.5};

}  // namespace so
