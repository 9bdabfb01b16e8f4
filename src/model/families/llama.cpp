// LlamaForCausalLM: Llama 2, 3, 3.1, 3.2, 3.3.
#include <array>

#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

constexpr std::array<TensorName, 21> names{{
    {Role::embedding, "model.embed_tokens.weight"},
    {Role::input_norm, "model.layers.{}.input_layernorm.weight"},
    {Role::q, "model.layers.{}.self_attn.q_proj.weight"},
    {Role::k, "model.layers.{}.self_attn.k_proj.weight"},
    {Role::v, "model.layers.{}.self_attn.v_proj.weight"},
    {Role::q_bias, "model.layers.{}.self_attn.q_proj.bias"},
    {Role::k_bias, "model.layers.{}.self_attn.k_proj.bias"},
    {Role::v_bias, "model.layers.{}.self_attn.v_proj.bias"},
    {Role::q_norm, "model.layers.{}.self_attn.q_norm.weight"},
    {Role::k_norm, "model.layers.{}.self_attn.k_norm.weight"},
    {Role::o, "model.layers.{}.self_attn.o_proj.weight"},
    {Role::o_bias, "model.layers.{}.self_attn.o_proj.bias"},
    {Role::mlp_norm, "model.layers.{}.post_attention_layernorm.weight"},
    {Role::gate, "model.layers.{}.mlp.gate_proj.weight"},
    {Role::up, "model.layers.{}.mlp.up_proj.weight"},
    {Role::gate_bias, "model.layers.{}.mlp.gate_proj.bias"},
    {Role::up_bias, "model.layers.{}.mlp.up_proj.bias"},
    {Role::down, "model.layers.{}.mlp.down_proj.weight"},
    {Role::down_bias, "model.layers.{}.mlp.down_proj.bias"},
    {Role::final_norm, "model.norm.weight"},
    {Role::lm_head, "lm_head.weight"},
}};

void read(ConfigReader& config, DecoderSpec& spec) {
  spec.mlp_bias = config.boolean("mlp_bias", false);
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
}

}  // namespace

std::span<const TensorName> llama_tensor_names() { return names; }

const Family llama_family{.architecture = "LlamaForCausalLM", .model_type = "llama", .names = names, .read = read};

}  // namespace so
