// Phi3ForCausalLM: Phi-3, Phi-3.5, Phi-4. Llama with q, k, v stored as one matrix, gate and up too, and a head of which
// a part may rotate.
#include <array>

#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

constexpr std::array<TensorName, 9> names{{
    {Role::embedding, "model.embed_tokens.weight"},
    {Role::input_norm, "model.layers.{}.input_layernorm.weight"},
    {Role::qkv, "model.layers.{}.self_attn.qkv_proj.weight"},
    {Role::o, "model.layers.{}.self_attn.o_proj.weight"},
    {Role::mlp_norm, "model.layers.{}.post_attention_layernorm.weight"},
    {Role::gate_up, "model.layers.{}.mlp.gate_up_proj.weight"},
    {Role::down, "model.layers.{}.mlp.down_proj.weight"},
    {Role::final_norm, "model.norm.weight"},
    {Role::lm_head, "lm_head.weight"},
}};

void read(ConfigReader& config, DecoderSpec& spec) {
  spec.qkv_bias = spec.o_bias = false;
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  for (const char* key : {"embd_pdrop", "resid_pdrop"})
    config.only_zero(key, "dropout is not supported; set it to 0, as these models are trained");
  if (config.has("sliding_window"))
    spec.layer_specs.assign(static_cast<std::size_t>(spec.layers), {config.positive_int("sliding_window"), false});
}

}  // namespace

const Family phi3_family{.architecture = "Phi3ForCausalLM",
                         .model_type = "phi3",
                         .names = names,
                         .read = read,
                         .rms_norm_eps = 1e-5,
                         .partial_rotary = true,
                         .yarn_means_longrope = true};

}  // namespace so
