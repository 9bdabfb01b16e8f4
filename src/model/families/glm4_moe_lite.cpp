// Glm4MoeLiteForCausalLM: GLM-4.7-Flash. Attention by latents, and in all layers but the first a mixture of experts
// beside a shared one without a gate, chosen by sigmoids and a bias that nothing trains. Experts are stored one by one.
// Published files have a layer beyond the last, which predicts further tokens.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

constexpr std::array<TensorName, 23> glm4_moe_lite_names{{
    {Role::embedding, "model.embed_tokens.weight"},
    {Role::input_norm, "model.layers.{}.input_layernorm.weight"},
    {Role::q_latent, "model.layers.{}.self_attn.q_a_proj.weight"},
    {Role::kv_latent, "model.layers.{}.self_attn.kv_a_proj_with_mqa.weight"},
    {Role::q_latent_norm, "model.layers.{}.self_attn.q_a_layernorm.weight"},
    {Role::q_heads, "model.layers.{}.self_attn.q_b_proj.weight"},
    {Role::kv_latent_norm, "model.layers.{}.self_attn.kv_a_layernorm.weight"},
    {Role::kv_heads, "model.layers.{}.self_attn.kv_b_proj.weight"},
    {Role::o, "model.layers.{}.self_attn.o_proj.weight"},
    {Role::mlp_norm, "model.layers.{}.post_attention_layernorm.weight"},
    {Role::gate, "model.layers.{}.mlp.gate_proj.weight"},
    {Role::up, "model.layers.{}.mlp.up_proj.weight"},
    {Role::down, "model.layers.{}.mlp.down_proj.weight"},
    {Role::router, "model.layers.{}.mlp.gate.weight"},
    {Role::selection_bias, "model.layers.{}.mlp.gate.e_score_correction_bias"},
    {Role::expert_gate, "model.layers.{}.mlp.experts.{}.gate_proj.weight"},
    {Role::expert_up, "model.layers.{}.mlp.experts.{}.up_proj.weight"},
    {Role::expert_down, "model.layers.{}.mlp.experts.{}.down_proj.weight"},
    {Role::shared_gate, "model.layers.{}.mlp.shared_experts.gate_proj.weight"},
    {Role::shared_up, "model.layers.{}.mlp.shared_experts.up_proj.weight"},
    {Role::shared_down, "model.layers.{}.mlp.shared_experts.down_proj.weight"},
    {Role::final_norm, "model.norm.weight"},
    {Role::lm_head, "lm_head.weight"},
}};

// With YaRN and mscale_all_dim the scores grow with the stretch.
double score_scale(const ConfigReader& config, std::int64_t head_dim) {
  const double scale = 1 / std::sqrt(static_cast<double>(head_dim));
  for (const auto& rotation : {config.object("rope_parameters"), config.object("rope_scaling")}) {
    if (!rotation || rotation->text("rope_type", rotation->text("type", "default")) == "default") continue;
    const double all = rotation->number("mscale_all_dim", 0);
    if (all == 0) continue;
    const double factor = rotation->positive_number("factor"), m = factor <= 1 ? 1 : 0.1 * all * std::log(factor) + 1;
    return scale * m * m;
  }
  return scale;
}

void read_latents(const ConfigReader& config, DecoderSpec& spec) {
  LatentSpec& l = spec.latent;
  if (config.is_null("q_lora_rank")) config.refuse("q_lora_rank", "queries without a latent are not supported");
  l.q_rank = config.positive_int("q_lora_rank", 768);
  l.kv_rank = config.positive_int("kv_lora_rank", 512);
  l.still_dim = config.positive_int("qk_nope_head_dim", 192);
  l.rotary_dim = config.positive_int("qk_rope_head_dim", 64);
  l.v_dim = config.positive_int("v_head_dim", 256);
  // transformers' class has head_dim as another name of it.
  if (spec.head_dim != 0 && spec.head_dim != l.rotary_dim) config.refuse("head_dim", "must equal qk_rope_head_dim");
  constexpr std::int64_t widest_part = std::int64_t{1} << 20;  // of a head: their sum is a number
  if (l.still_dim > widest_part || l.rotary_dim > widest_part)
    config.refuse("qk_nope_head_dim", "and qk_rope_head_dim make heads that are wider than any model has");
  spec.head_dim = l.still_dim + l.rotary_dim;
  if (l.v_dim != spec.head_dim)
    config.refuse("v_head_dim",
                  fmt::format("{} is not supported, only as many as qk_nope_head_dim and qk_rope_head_dim "
                              "together, {}",
                              l.v_dim, spec.head_dim));
  if (spec.kv_heads != spec.heads) config.refuse("num_key_value_heads", "must equal num_attention_heads");
  if (spec.qkv_bias) config.refuse("attention_bias", "not supported for this architecture");
  spec.rope.pairs = config.boolean("rope_interleave", true) ? RotaryPairs::neighbours : RotaryPairs::halves;
  if (const double scale = score_scale(config, spec.head_dim);
      scale != 1 / std::sqrt(static_cast<double>(spec.head_dim)))
    spec.attention_scale = scale;
}

void read_experts(const ConfigReader& config, DecoderSpec& spec) {
  ExpertSpec& e = spec.experts;
  e.count = config.positive_int("n_routed_experts", 64);
  if (config.positive_int("num_local_experts", e.count) != e.count)
    config.refuse("num_local_experts", "must equal n_routed_experts, of which it is another name");
  e.per_token = config.positive_int("num_experts_per_tok", 4);
  e.intermediate = config.positive_int("moe_intermediate_size", 1536);
  constexpr std::int64_t most_shared = 1024;
  const std::int64_t shared = config.positive_int("n_shared_experts", 1);
  if (shared > most_shared || e.intermediate > (std::int64_t{1} << 24))
    config.refuse("n_shared_experts", "with moe_intermediate_size is more than any model has");
  e.shared_intermediate = shared * e.intermediate;
  e.scores = RouterRule::Scores::sigmoid;
  e.renormalized = config.boolean("norm_topk_prob", true);
  e.scale = config.positive_number("routed_scaling_factor", 1.8);
  e.selection_bias = true;
  for (const char* key : {"n_group", "topk_group"})
    if (config.positive_int(key, 1) != 1)
      config.refuse(key, "only 1 is supported: experts are not chosen by groups here");
  // Keys of DeepSeek V3, which the class was made from.
  config.only("topk_method", "noaux_tc");
  config.only("scoring_func", "sigmoid");
}

// mlp_layer_types, one a layer; without it the first layer alone is dense.
void read_layers(const ConfigReader& config, DecoderSpec& spec) {
  const std::vector<std::string> types = config.texts("mlp_layer_types");
  if (!types.empty() && static_cast<std::int64_t>(types.size()) != spec.layers)
    config.refuse("mlp_layer_types", fmt::format("has {} entries for {} layers", types.size(), spec.layers));
  spec.layer_specs.assign(static_cast<std::size_t>(spec.layers), {.mixer = TokenMixer::latent});
  for (std::size_t i = 0; i < spec.layer_specs.size(); ++i) {
    if (!types.empty() && types[i] != "dense" && types[i] != "sparse")
      config.refuse("mlp_layer_types",
                    fmt::format("'{}' is not supported, only 'dense' and 'sparse'", printable(types[i])));
    spec.layer_specs[i].experts = types.empty() ? i > 0 : types[i] == "sparse";
  }
  // Published files have this key too, and transformers does not read it.
  const auto sparse = [](const LayerSpec& layer) { return layer.experts; };
  const auto first = std::find_if(spec.layer_specs.begin(), spec.layer_specs.end(), sparse);
  const std::int64_t dense = config.whole_number("first_k_dense_replace", first - spec.layer_specs.begin());
  if (dense != first - spec.layer_specs.begin() || !std::all_of(first, spec.layer_specs.end(), sparse))
    if (config.has("first_k_dense_replace"))
      config.refuse("first_k_dense_replace",
                    "is not what mlp_layer_types says, by which transformers goes; without "
                    "that the first layer alone is dense");
}

void read(ConfigReader& config, DecoderSpec& spec) {
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  read_latents(config, spec);
  read_experts(config, spec);
  read_layers(config, spec);
}

}  // namespace

const Family glm4_moe_lite_family{
    .architecture = "Glm4MoeLiteForCausalLM",
    .model_type = "glm4_moe_lite",
    .names = glm4_moe_lite_names,
    .read = read,
    .kv_heads = 20,
    .rms_norm_eps = 1e-5,
    .extra_layers = true,
    .sizes = {.vocab = 154880, .hidden = 2048, .layers = 47, .heads = 20, .intermediate = 10240, .positions = 202752}};

}  // namespace so
