// Qwen3_5ForCausalLM: the text models of Qwen3.5, which are published inside Qwen3_5ForConditionalGeneration. Most
// layers are gated delta layers; the others attend with a gate on their output, norms of query and key heads, and a
// quarter of each head that rotates. Norm weights are stored around 0, but for that of a delta layer's output. The
// models with experts (qwen3_5_moe.cpp) and Qwen3-Next (qwen3_next.cpp) have the same layers and names.
#include <array>

#include "base/error.h"
#include "base/file.h"
#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

constexpr std::array<TensorName, 39> qwen3_5_names{{
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
    {Role::delta_qkv, "model.layers.{}.linear_attn.in_proj_qkv.weight"},
    {Role::delta_z, "model.layers.{}.linear_attn.in_proj_z.weight"},
    {Role::delta_b, "model.layers.{}.linear_attn.in_proj_b.weight"},
    {Role::delta_a, "model.layers.{}.linear_attn.in_proj_a.weight"},
    {Role::delta_qkvz, "model.layers.{}.linear_attn.in_proj_qkvz.weight"},
    {Role::delta_ba, "model.layers.{}.linear_attn.in_proj_ba.weight"},
    {Role::delta_convolution, "model.layers.{}.linear_attn.conv1d.weight"},
    {Role::delta_a_log, "model.layers.{}.linear_attn.A_log"},
    {Role::delta_dt_bias, "model.layers.{}.linear_attn.dt_bias"},
    {Role::delta_norm, "model.layers.{}.linear_attn.norm.weight"},
    {Role::delta_out, "model.layers.{}.linear_attn.out_proj.weight"},
    {Role::mlp_norm, "model.layers.{}.post_attention_layernorm.weight"},
    {Role::gate, "model.layers.{}.mlp.gate_proj.weight"},
    {Role::up, "model.layers.{}.mlp.up_proj.weight"},
    {Role::down, "model.layers.{}.mlp.down_proj.weight"},
    {Role::router, "model.layers.{}.mlp.gate.weight"},
    {Role::expert_gate, "model.layers.{}.mlp.experts.{}.gate_proj.weight"},
    {Role::expert_up, "model.layers.{}.mlp.experts.{}.up_proj.weight"},
    {Role::expert_down, "model.layers.{}.mlp.experts.{}.down_proj.weight"},
    {Role::experts_gate_up, "model.layers.{}.mlp.experts.gate_up_proj"},
    {Role::experts_down, "model.layers.{}.mlp.experts.down_proj"},
    {Role::shared_gate, "model.layers.{}.mlp.shared_expert.gate_proj.weight"},
    {Role::shared_up, "model.layers.{}.mlp.shared_expert.up_proj.weight"},
    {Role::shared_down, "model.layers.{}.mlp.shared_expert.down_proj.weight"},
    {Role::shared_output_gate, "model.layers.{}.mlp.shared_expert_gate.weight"},
    {Role::final_norm, "model.norm.weight"},
    {Role::lm_head, "lm_head.weight"},
}};

constexpr std::array<TextNames, 1> text_names{{{.model = "model.language_model.", .lm_head = "lm_head."}}};
constexpr std::array<std::string_view, 1> carried{"model.visual."};
constexpr std::array<Wrapper, 1> wrappers{{{.architecture = "Qwen3_5ForConditionalGeneration",
                                            .model_type = "qwen3_5",
                                            .names = text_names,
                                            .carried = carried}}};

// layer_types, one a layer, or full_attention_interval.
void read_mixers(const ConfigReader& config, DecoderSpec& spec) {
  const std::vector<std::string> types = config.texts("layer_types");
  if (!types.empty() && static_cast<std::int64_t>(types.size()) != spec.layers)
    config.refuse("layer_types", fmt::format("has {} entries for {} layers", types.size(), spec.layers));
  const std::int64_t interval = config.positive_int("full_attention_interval", 4);
  spec.layer_specs.resize(static_cast<std::size_t>(spec.layers));
  for (std::size_t i = 0; i < spec.layer_specs.size(); ++i) {
    const bool attends =
        types.empty() ? (i + 1) % static_cast<std::size_t>(interval) == 0 : types[i] == "full_attention";
    if (!types.empty() && !attends && types[i] != "linear_attention")
      config.refuse("layer_types", fmt::format("'{}' is not supported, only 'linear_attention' and 'full_attention'",
                                               printable(types[i])));
    if (!attends) spec.layer_specs[i] = {.rotation = LayerRotation::none, .mixer = TokenMixer::gated_delta};
  }
}

void read_delta(const ConfigReader& config, DeltaSpec& delta) {
  delta.k_heads = config.positive_int("linear_num_key_heads", 16);
  delta.v_heads = config.positive_int("linear_num_value_heads", 32);
  delta.k_dim = config.positive_int("linear_key_head_dim", 128);
  delta.v_dim = config.positive_int("linear_value_head_dim", 128);
  delta.convolution = config.positive_int("linear_conv_kernel_dim", 4);
  if (delta.v_heads % delta.k_heads != 0)
    config.refuse("linear_num_value_heads", "must be a multiple of linear_num_key_heads");
  constexpr std::int64_t widest_convolution = 8;
  if (delta.convolution > widest_convolution)
    config.refuse("linear_conv_kernel_dim", fmt::format("at most {} are supported", widest_convolution));
}

// Images and videos turn parts of a head by positions of their own. In text all are the token's, so the sections only
// need to be possible.
void check_sections(const ConfigReader& config) {
  for (const auto& place : {config.object("rope_parameters"), config.object("rope_scaling")})
    if (place) {
      place->boolean("mrope_interleaved", true);
      for (const std::int64_t section : place->whole_numbers("mrope_section"))
        if (section < 0) place->refuse("mrope_section", "expected numbers of 0 or more");
    }
}

void read(ConfigReader& config, DecoderSpec& spec) { read_qwen3_5(config, spec); }

}  // namespace

std::span<const TensorName> qwen3_5_tensor_names() { return qwen3_5_names; }

void read_qwen3_5(const ConfigReader& config, DecoderSpec& spec) {
  if (spec.head_dim == 0) spec.head_dim = 256;
  spec.qk_norm = true;
  spec.norm_offset = 1;
  spec.output_gate = true;
  if (!config.boolean("attn_output_gate", true))
    config.refuse("attn_output_gate", "only true is supported for this architecture, as in transformers");
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  config.only("mamba_ssm_dtype", "float32");
  check_sections(config);
  read_mixers(config, spec);
  read_delta(config, spec.delta);
}

const Family qwen3_5_family{
    .architecture = "Qwen3_5ForCausalLM",
    .model_type = "qwen3_5_text",
    .names = qwen3_5_names,
    .read = read,
    .kv_heads = 4,
    .partial_rotary = true,
    .rotary_part = 0.25,
    .sizes = {.vocab = 248320, .hidden = 4096, .layers = 32, .heads = 16, .intermediate = 12288, .positions = 32768},
    .wrappers = wrappers};

}  // namespace so
