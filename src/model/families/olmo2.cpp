// Olmo2ForCausalLM: Llama with the norms after attention and MLP instead of before, and a norm of all queries of a
// token, and of all its keys.
#include <array>

#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

constexpr std::array<TensorName, 18> names{{
    {Role::embedding, "model.embed_tokens.weight"},
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
    {Role::attention_output_norm, "model.layers.{}.post_attention_layernorm.weight"},
    {Role::gate, "model.layers.{}.mlp.gate_proj.weight"},
    {Role::up, "model.layers.{}.mlp.up_proj.weight"},
    {Role::down, "model.layers.{}.mlp.down_proj.weight"},
    {Role::mlp_output_norm, "model.layers.{}.post_feedforward_layernorm.weight"},
    {Role::final_norm, "model.norm.weight"},
    {Role::lm_head, "lm_head.weight"},
}};

void read(ConfigReader& config, DecoderSpec& spec) { read_olmo(config, spec); }

}  // namespace

std::span<const TensorName> olmo_tensor_names() { return names; }

void read_olmo(const ConfigReader& config, DecoderSpec& spec) {
  spec.input_norms = false;
  spec.output_norms = spec.projection_norm = true;
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
}

const Family olmo2_family{
    .architecture = "Olmo2ForCausalLM", .model_type = "olmo2", .names = names, .read = read, .rms_norm_eps = 1e-5};

}  // namespace so
