// GptOssForCausalLM: experts with biases stored as one array [experts, in, out], published in MXFP4; attention with
// biases, sinks, and a sliding window on every other layer.
#include <array>

#include "base/error.h"
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
    {Role::sinks, "model.layers.{}.self_attn.sinks"},
    {Role::o, "model.layers.{}.self_attn.o_proj.weight"},
    {Role::o_bias, "model.layers.{}.self_attn.o_proj.bias"},
    {Role::mlp_norm, "model.layers.{}.post_attention_layernorm.weight"},
    {Role::router, "model.layers.{}.mlp.router.weight"},
    {Role::router_bias, "model.layers.{}.mlp.router.bias"},
    {Role::experts_gate_up, "model.layers.{}.mlp.experts.gate_up_proj"},
    {Role::experts_gate_up_bias, "model.layers.{}.mlp.experts.gate_up_proj_bias"},
    {Role::experts_down, "model.layers.{}.mlp.experts.down_proj"},
    {Role::experts_down_bias, "model.layers.{}.mlp.experts.down_proj_bias"},
    {Role::final_norm, "model.norm.weight"},
    {Role::lm_head, "lm_head.weight"},
}};

void read(ConfigReader& config, DecoderSpec& spec) {
  if (spec.head_dim == 0) spec.head_dim = 64;
  spec.qkv_bias = spec.o_bias = config.boolean("attention_bias", true);
  spec.sinks = true;
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  ExpertSpec& e = spec.experts;
  e.count = config.positive_int(config.has("num_local_experts") ? "num_local_experts" : "num_experts");
  e.per_token = config.positive_int(config.has("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token");
  e.intermediate = spec.intermediate;
  e.renormalized = e.router_bias = e.biases = e.stacked = true;
  e.layout = ExpertLayout::in_out;
  e.activation = {ExpertActivation::Kind::clamped, static_cast<float>(config.positive_number("swiglu_limit", 7.0))};
  if (config.positive_number("swiglu_alpha", 1.702) != 1.702) config.refuse("swiglu_alpha", "only 1.702 is supported");
  read_router_loss(config, spec);
  if (config.is_null("sliding_window"))
    config.refuse("sliding_window", "null is not supported; the layers that are to see all have 'full_attention'");
  read_windows(config, spec, config.positive_int("sliding_window", 128),
               [](const ConfigReader&, std::int64_t layer) { return layer % 2 == 0; });
  for (LayerSpec& layer : spec.layer_specs) layer.experts = true;
}

}  // namespace

const Family gpt_oss_family{.architecture = "GptOssForCausalLM",
                            .model_type = "gpt_oss",
                            .names = names,
                            .read = read,
                            .kv_heads = 8,
                            .rms_norm_eps = 1e-5,
                            .rope_theta = 150000,
                            .mxfp4 = true};

}  // namespace so
