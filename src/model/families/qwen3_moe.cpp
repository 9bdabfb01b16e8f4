// Qwen3MoeForCausalLM: Qwen3 with a mixture of experts in place of most layers' MLP; experts are stored one by one.
#include <algorithm>
#include <array>

#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

constexpr std::array<TensorName, 18> names{{
    {Role::embedding, "model.embed_tokens.weight"},
    {Role::input_norm, "model.layers.{}.input_layernorm.weight"},
    {Role::q, "model.layers.{}.self_attn.q_proj.weight"},
    {Role::k, "model.layers.{}.self_attn.k_proj.weight"},
    {Role::v, "model.layers.{}.self_attn.v_proj.weight"},
    {Role::q_norm, "model.layers.{}.self_attn.q_norm.weight"},
    {Role::k_norm, "model.layers.{}.self_attn.k_norm.weight"},
    {Role::o, "model.layers.{}.self_attn.o_proj.weight"},
    {Role::mlp_norm, "model.layers.{}.post_attention_layernorm.weight"},
    {Role::gate, "model.layers.{}.mlp.gate_proj.weight"},
    {Role::up, "model.layers.{}.mlp.up_proj.weight"},
    {Role::down, "model.layers.{}.mlp.down_proj.weight"},
    {Role::router, "model.layers.{}.mlp.gate.weight"},
    {Role::expert_gate, "model.layers.{}.mlp.experts.{}.gate_proj.weight"},
    {Role::expert_up, "model.layers.{}.mlp.experts.{}.up_proj.weight"},
    {Role::expert_down, "model.layers.{}.mlp.experts.{}.down_proj.weight"},
    {Role::final_norm, "model.norm.weight"},
    {Role::lm_head, "lm_head.weight"},
}};

void read(ConfigReader& config, DecoderSpec& spec) {
  if (spec.head_dim == 0) spec.head_dim = spec.hidden / spec.heads;
  spec.qk_norm = true;
  if (spec.qkv_bias) config.refuse("attention_bias", "not supported for this architecture");
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  ExpertSpec& e = spec.experts;
  e.count = config.positive_int(config.has("num_local_experts") ? "num_local_experts" : "num_experts");
  e.per_token = config.positive_int("num_experts_per_tok");
  e.intermediate = config.positive_int("moe_intermediate_size");
  e.renormalized = config.boolean("norm_topk_prob", false);
  read_router_loss(config, spec);

  LayerSpec every;
  if (config.boolean("use_sliding_window", false)) every.window = config.positive_int("sliding_window");
  spec.layer_specs.assign(static_cast<std::size_t>(spec.layers), every);
  const std::int64_t step = config.positive_int("decoder_sparse_step", 1);
  const std::vector<std::int64_t> dense = config.whole_numbers("mlp_only_layers");
  for (std::int64_t layer = 0; layer < spec.layers; ++layer)
    spec.layer_specs[static_cast<std::size_t>(layer)].experts =
        (layer + 1) % step == 0 && std::find(dense.begin(), dense.end(), layer) == dense.end();
}

}  // namespace

const Family qwen3_moe_family{
    .architecture = "Qwen3MoeForCausalLM", .model_type = "qwen3_moe", .names = names, .read = read, .kv_heads = 4};

}  // namespace so
