// Gemma4ForCausalLM: the text models of Gemma 4, which are published inside Gemma4ForConditionalGeneration. Norms
// before and after attention and MLP, of q and k heads, and without a weight of v heads; a scale of each layer's
// output, a scaled embedding, a soft cap of the logits, and a gate with GELU. Five of six layers have a window; the
// others have larger heads, fewer key heads, which are their values too, and a rotation that turns a part of each
// head's pairs. The models with experts have them beside the MLP of every layer. E2B and E4B have inputs of each layer
// beside the residual stream, and last layers that attend to the keys and values of layers below, with wider MLPs.
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

constexpr std::array<TensorName, 38> names{{
    {Role::embedding, "model.embed_tokens.weight"},
    {Role::layer_input_table, "model.embed_tokens_per_layer.weight"},
    {Role::layer_input_projection, "model.per_layer_model_projection.weight"},
    {Role::layer_input_norm, "model.per_layer_projection_norm.weight"},
    {Role::layer_scale, "model.layers.{}.layer_scalar"},
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
    {Role::shared_gate, "model.layers.{}.mlp.gate_proj.weight"},
    {Role::shared_up, "model.layers.{}.mlp.up_proj.weight"},
    {Role::shared_down, "model.layers.{}.mlp.down_proj.weight"},
    {Role::shared_output_norm, "model.layers.{}.post_feedforward_layernorm_1.weight"},
    {Role::router_norm, "model.layers.{}.router.scale"},
    {Role::router, "model.layers.{}.router.proj.weight"},
    {Role::expert_scale, "model.layers.{}.router.per_expert_scale"},
    {Role::experts_input_norm, "model.layers.{}.pre_feedforward_layernorm_2.weight"},
    {Role::experts_gate_up, "model.layers.{}.experts.gate_up_proj"},
    {Role::experts_down, "model.layers.{}.experts.down_proj"},
    {Role::experts_output_norm, "model.layers.{}.post_feedforward_layernorm_2.weight"},
    {Role::mlp_output_norm, "model.layers.{}.post_feedforward_layernorm.weight"},
    {Role::layer_input_gate, "model.layers.{}.per_layer_input_gate.weight"},
    {Role::layer_input_out, "model.layers.{}.per_layer_projection.weight"},
    {Role::layer_input_output_norm, "model.layers.{}.post_per_layer_input_norm.weight"},
    {Role::final_norm, "model.norm.weight"},
    {Role::lm_head, "lm_head.weight"},
}};

constexpr std::array<TextNames, 1> text_names{{{.model = "model.language_model.", .lm_head = "lm_head."}}};
constexpr std::array<std::string_view, 4> carried{"model.vision_tower.", "model.embed_vision.", "model.audio_tower.",
                                                  "model.embed_audio."};
constexpr std::array<Wrapper, 1> wrappers{{{.architecture = "Gemma4ForConditionalGeneration",
                                            .model_type = "gemma4",
                                            .names = text_names,
                                            .carried = carried,
                                            .tied_embeddings = true}}};

void refuse_what_is_not_done(const ConfigReader& config) {
  // Texts are causal where images are not.
  const std::string both_ways = config.text("use_bidirectional_attention", "vision");
  if (both_ways != "vision")
    config.refuse("use_bidirectional_attention",
                  fmt::format("'{}' is not supported: this program trains causal models", printable(both_ways)));
}

// Published files have the heads of the layers without a window under keys of their own; transformers 5.24 writes what
// each of these layers has otherwise.
GlobalHeads read_global_heads(const ConfigReader& config, const DecoderSpec& spec) {
  const bool keys_are_values = config.boolean("attention_k_eq_v", false);
  GlobalHeads heads{spec.kv_heads, config.positive_int("global_head_dim", 512), keys_are_values};
  if (keys_are_values) heads.kv_heads = config.positive_int("num_global_key_value_heads", spec.kv_heads);
  const auto by_layer = config.object("per_layer_config");
  if (!by_layer) return heads;
  bool first = true;
  std::size_t found = 0;
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    const auto layer = by_layer->object(std::to_string(i));
    found += layer ? 1 : 0;
    const std::int64_t head_dim = layer ? layer->positive_int("head_dim", spec.head_dim) : spec.head_dim,
                       kv_heads = layer ? layer->positive_int("num_key_value_heads", spec.kv_heads) : spec.kv_heads;
    if (layer)
      for (const std::string& key : layer->keys())
        if (key != "head_dim" && key != "num_key_value_heads")
          layer->refuse(key, "not supported for one layer, only head_dim and num_key_value_heads");
    if (spec.layer(i).window > 0) {
      if (head_dim != spec.head_dim || kv_heads != spec.kv_heads)
        config.refuse("per_layer_config", fmt::format("layer {} has a window; other heads than those of the model are "
                                                      "supported for layers without alone",
                                                      i));
      continue;
    }
    if (!first && (head_dim != heads.head_dim || kv_heads != heads.kv_heads))
      config.refuse("per_layer_config",
                    fmt::format("layer {} has other heads than layers before it without a window", i));
    heads.head_dim = head_dim, heads.kv_heads = kv_heads;
    first = false;
  }
  if (found != by_layer->keys().size())
    config.refuse("per_layer_config", fmt::format("expected numbers of layers from 0 to {}", spec.layers - 1));
  return heads;
}

// Experts beside the MLP of every layer.
void read_gemma4_experts(const ConfigReader& config, DecoderSpec& spec) {
  ExpertSpec& e = spec.experts;
  e.count = config.positive_int("num_experts");
  e.per_token = config.positive_int("top_k_experts");
  if (e.per_token > e.count) config.refuse("top_k_experts", "must be at most num_experts");
  e.intermediate = config.positive_int("moe_intermediate_size");
  e.shared_intermediate = spec.intermediate;
  e.renormalized = e.stacked = e.shared_apart = e.expert_scales = true;
  e.activation.kind = ExpertActivation::Kind::geglu;
  e.router_scale = 1 / std::sqrt(static_cast<double>(spec.hidden));
  for (LayerSpec& layer : spec.layer_specs) layer.experts = true;
}

void read_layer_inputs(const ConfigReader& config, DecoderSpec& spec) {
  spec.layer_input = config.whole_number("hidden_size_per_layer_input", 256);
  if (spec.layer_input == 0) return;
  spec.layer_input_vocab = config.positive_int("vocab_size_per_layer_input", 262144);
  if (spec.layer_input_vocab < spec.vocab)
    config.refuse("vocab_size_per_layer_input",
                  fmt::format("{} rows do not do for the {} of vocab_size", spec.layer_input_vocab, spec.vocab));
}

// The last layers attend to the keys and values of the last layer of their kind that has its own.
void read_shared_keys(const ConfigReader& config, DecoderSpec& spec) {
  const std::int64_t count = config.whole_number("num_kv_shared_layers", 0), own = spec.layers - count;
  if (own < 0) config.refuse("num_kv_shared_layers", fmt::format("must be from 0 to {}", spec.layers - 1));
  const bool wide = config.boolean("use_double_wide_mlp", false);
  if (wide && count > 0 && spec.experts.count > 0) config.refuse("use_double_wide_mlp", "not supported beside experts");
  const auto spec_of = [&](std::int64_t i) -> LayerSpec& { return spec.layer_specs[static_cast<std::size_t>(i)]; };
  for (std::int64_t i = own; i < spec.layers; ++i) {
    std::int64_t from = own - 1;
    while (from >= 0 && spec_of(from).window != spec_of(i).window) --from;
    if (from < 0)
      config.refuse("num_kv_shared_layers",
                    fmt::format("layer {} has the keys and values of an earlier layer, and none "
                                "of its kind in layer_types has its own",
                                i));
    spec_of(i).keys_of = from;
    if (wide) spec_of(i).intermediate = 2 * spec.intermediate;
  }
}

void read_gemma4_windows(const ConfigReader& config, DecoderSpec& spec) {
  if (config.is_null("sliding_window"))
    config.refuse("sliding_window", "null is not supported; the layers that are to see all have 'full_attention'");
  read_windows(config, spec, config.positive_int("sliding_window", 512),
               [](const ConfigReader&, std::int64_t layer) { return (layer + 1) % 6 != 0; });
  if (spec.layer_specs.back().window == 0) return;
  spec.layer_specs.back().window = 0;
  if (config.has("layer_types"))
    spec.remarks.push_back(fmt::format(
        "config.json has 'sliding_attention' as the last of layer_types; the last layer of {} always sees all",
        spec.architecture));
}

void read(ConfigReader& config, DecoderSpec& spec) {
  refuse_what_is_not_done(config);
  if (spec.head_dim == 0) spec.head_dim = 256;
  spec.qk_norm = spec.value_norm = spec.output_norms = spec.layer_scales = true;
  spec.gate = MlpActivation::gelu_tanh;
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.hidden));
  spec.round_embedding_scale = true;
  spec.attention_scale = 1;
  spec.tied_embeddings = config.boolean("tie_word_embeddings", true);
  if (config.has("final_logit_softcapping")) spec.logits_cap = config.positive_number("final_logit_softcapping");
  read_gemma4_windows(config, spec);
  if (config.boolean("enable_moe_block", false)) read_gemma4_experts(config, spec);
  read_shared_keys(config, spec);
  read_layer_inputs(config, spec);
  spec.global_heads = read_global_heads(config, spec);
  if (spec.heads % spec.global_heads->kv_heads != 0)
    config.refuse("num_global_key_value_heads", "must divide num_attention_heads");
  if (spec.global_heads->head_dim % 2 != 0) config.refuse("global_head_dim", "must be even");
}

// 'proportional': pairs are those of the whole head, but the last of them, of which partial_rotary_factor leaves out as
// many as it says, do not turn.
RopeSpec read_gemma4_rotation(const ConfigReader& of_type, std::int64_t head_dim) {
  RopeSpec rope;
  rope.rotary_dim = head_dim;
  rope.theta = of_type.positive_number("rope_theta");
  const std::string type = of_type.text("rope_type", "default");
  if (type == "default") {
    for (const char* key : {"partial_rotary_factor", "factor"})
      if (of_type.positive_number(key, 1) != 1) of_type.refuse(key, "only 1 is supported with the type 'default'");
    return rope;
  }
  if (type != "proportional")
    of_type.refuse("rope_type", fmt::format("'{}' is not supported for this architecture, only 'default' and "
                                            "'proportional'",
                                            printable(type)));
  const double part = of_type.positive_number("partial_rotary_factor", 1);
  if (part > 1) of_type.refuse("partial_rotary_factor", "must be at most 1");
  const auto turning = static_cast<std::int64_t>(std::floor(part * static_cast<double>(head_dim) / 2));
  rope.still_pairs = head_dim / 2 - turning;
  rope.factor = of_type.positive_number("factor", 1);
  if (rope.factor != 1) rope.scaling = RopeScaling::linear;
  return rope;
}

void read_rotations(const ConfigReader& config, DecoderSpec& spec) {
  if (config.object("rope_scaling"))
    config.refuse("rope_scaling", "not read for this architecture; it has rope_parameters");
  const std::int64_t global_dim = spec.global_heads->head_dim;
  bool windows = false;
  for (LayerSpec& layer : spec.layer_specs)
    if (layer.window > 0) {
      layer.rotation = LayerRotation::local;
      windows = true;
    }
  if (const auto parameters = config.object("rope_parameters")) {
    const auto of_type = [&](const char* type, std::int64_t head_dim) {
      const auto rotation = parameters->object(type);
      if (!rotation) parameters->refuse(type, "missing; each type of layers has its rotation there");
      return read_gemma4_rotation(*rotation, head_dim);
    };
    spec.rope = of_type("full_attention", global_dim);
    if (windows) spec.local_rope = of_type("sliding_attention", spec.head_dim);
  } else {
    spec.rope.theta = 1e6;
    spec.rope.rotary_dim = global_dim;
    spec.rope.still_pairs = global_dim / 2 - global_dim / 8;
    spec.local_rope = RopeSpec{.theta = 10000, .rotary_dim = spec.head_dim};
  }
}

}  // namespace

const Family gemma4_family{
    .architecture = "Gemma4ForCausalLM",
    .model_type = "gemma4_text",
    .names = names,
    .read = read,
    .kv_heads = 4,
    .read_rotations = read_rotations,
    .activation_key = "hidden_activation",
    .activation = "gelu_pytorch_tanh",
    .sizes = {.vocab = 262144, .hidden = 2304, .layers = 30, .heads = 8, .intermediate = 9216, .positions = 131072},
    .wrappers = wrappers};

}  // namespace so
