// Gemma3ForCausalLM: the text models of Gemma 3, which are published by themselves (270M, 1B) and inside
// Gemma3ForConditionalGeneration, with a vision tower (4B and larger). Norms before and after attention and MLP whose
// weights are stored around 0, norms of q and k heads, a gate with GELU, a scaled embedding, and a window on five of
// six layers, which have a rotation of their own.
#include <array>
#include <cmath>

#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

constexpr std::array<TensorName, 20> names{{
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
    {Role::attention_output_norm, "model.layers.{}.post_attention_layernorm.weight"},
    {Role::mlp_norm, "model.layers.{}.pre_feedforward_layernorm.weight"},
    {Role::gate, "model.layers.{}.mlp.gate_proj.weight"},
    {Role::up, "model.layers.{}.mlp.up_proj.weight"},
    {Role::down, "model.layers.{}.mlp.down_proj.weight"},
    {Role::mlp_output_norm, "model.layers.{}.post_feedforward_layernorm.weight"},
    {Role::final_norm, "model.norm.weight"},
    {Role::lm_head, "lm_head.weight"},
}};

std::span<const Wrapper> wrappers() {
  static const std::array<Wrapper, 1> all{{{.architecture = "Gemma3ForConditionalGeneration",
                                            .model_type = "gemma3",
                                            .names = llava_text_names(),
                                            .carried = llava_carried_names(),
                                            .tied_embeddings = true}}};
  return all;
}

void read(ConfigReader& config, DecoderSpec& spec) {
  if (spec.head_dim == 0) spec.head_dim = 256;
  spec.qk_norm = spec.output_norms = true;
  spec.norm_offset = 1;
  spec.gate = MlpActivation::gelu_tanh;
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.hidden));
  spec.round_embedding_scale = true;
  spec.attention_scale = 1 / std::sqrt(config.positive_number("query_pre_attn_scalar", 256));
  spec.tied_embeddings = config.boolean("tie_word_embeddings", true);
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"})
    if (config.has(key)) config.refuse(key, "a soft cap of logits is not supported, only null");
  if (config.boolean("use_bidirectional_attention", false))
    config.refuse("use_bidirectional_attention", "only false is supported: this program trains causal models");
  if (config.is_null("sliding_window"))
    config.refuse("sliding_window", "null is not supported; the layers that are to see all have 'full_attention'");
  read_windows(config, spec, config.positive_int("sliding_window", 4096), [](const ConfigReader& c, std::int64_t i) {
    return (i + 1) % c.positive_int("sliding_window_pattern", 6) != 0;
  });
}

}  // namespace

const Family gemma3_family{
    .architecture = "Gemma3ForCausalLM",
    .model_type = "gemma3_text",
    .names = names,
    .read = read,
    .kv_heads = 4,
    .rope_theta = 1000000,
    .local_theta_key = "rope_local_base_freq",
    .activation_key = "hidden_activation",
    .activation = "gelu_pytorch_tanh",
    .sizes = {.vocab = 262208, .hidden = 2304, .layers = 26, .heads = 8, .intermediate = 9216, .positions = 131072},
    .wrappers = wrappers()};

}  // namespace so
