// One table per family: the Hugging Face class, how its config.json reads, what its tensors are called.
// Adding a family is a file beside llama.cpp with such a table, a line in families.cpp, and a test;
// docs/adding-a-model.md is the checklist.
#pragma once

#include <span>
#include <string_view>

#include "model/spec.h"

namespace so {

class ConfigReader;

// The parts of a decoder, in the order the forward pass uses them inside their unit. The q, k, v weights, their biases,
// the four (or two) of a delta layer, the two of latents, and gate and up, lie next to each other and are used as one
// matrix; a family that stores them as one names qkv and gate_up instead, and one without gates up alone. So are all
// experts of a layer one array, stored one by one (expert_*) or as one (experts_*); a family whose files have either
// names both.
enum class Role : std::uint8_t {
  embedding,
  // These lie in the embedding's unit: what makes the inputs of layers (decoder/layer_inputs.h), and one scale for each
  // layer.
  layer_input_table,
  layer_input_projection,
  layer_input_norm,
  layer_scale,
  input_norm,
  q,
  k,
  v,
  qkv,
  q_bias,
  k_bias,
  v_bias,
  q_norm,
  k_norm,
  sinks,
  q_latent,
  kv_latent,
  q_latent_norm,
  q_heads,
  kv_latent_norm,
  kv_heads,
  o,
  o_bias,
  delta_qkv,
  delta_z,
  delta_b,
  delta_a,
  delta_qkvz,
  delta_ba,
  delta_convolution,
  delta_a_log,
  delta_dt_bias,
  delta_norm,
  delta_out,
  space_in,  // of a state space
  space_convolution,
  space_convolution_bias,
  space_dt_bias,
  space_a_log,
  space_skip,
  space_norm,
  space_out,
  attention_output_norm,
  mlp_norm,
  gate,
  up,
  gate_up,
  gate_bias,
  up_bias,
  down,
  down_bias,
  mlp_output_norm,
  router,
  router_bias,
  selection_bias,  // no parameter: ExpertSpec::selection_bias
  expert_gate,
  expert_up,
  expert_down,
  experts_gate_up,
  experts_gate_up_bias,
  experts_down,
  experts_down_bias,
  shared_gate,
  shared_up,
  shared_down,
  shared_output_gate,
  shared_output_norm,
  experts_input_norm,
  experts_output_norm,
  router_norm,
  expert_scale,
  layer_input_gate,  // what a layer does with its input, after the MLP (decoder/layer_input_block.h)
  layer_input_out,
  layer_input_output_norm,
  final_norm,
  lm_head,
};

struct TensorName {
  Role role;
  std::string_view name;  // the first "{}" stands for the layer, the second for the expert
};

// What the names in the files of a model of text and more have in place of "model." and "lm_head." of its text family.
struct TextNames {
  std::string_view model, lm_head;
};

// A class that holds a family's text model beside others (images, audio). Its config.json has the text model's in
// "text_config", whose model_type says which of the families that name the class it is.
struct Wrapper {
  std::string_view architecture;
  std::string_view model_type;
  std::span<const TextNames> names;           // a directory has one of them; the first is what transformers writes
  std::span<const std::string_view> carried;  // what tensors' names begin with that are not the text model's
  bool tied_embeddings = false;               // without tie_word_embeddings beside text_config
};

// Sizes without their keys; 0: the key must be there.
struct DefaultSizes {
  std::int64_t vocab = 0, hidden = 0, layers = 0, heads = 0, intermediate = 0, positions = 0;
};

struct Family {
  std::string_view architecture;
  std::string_view model_type;  // that config.json has beside it
  std::span<const TensorName> names;
  // Fills `spec` from the keys that are this family's own; the common ones have been read (families.cpp).
  void (*read)(ConfigReader& config, DecoderSpec& spec);
  std::int64_t kv_heads = 0;    // without the key num_key_value_heads; 0, and where it is null: as many as heads
  double rms_norm_eps = 1e-6;   // without the key
  double rope_theta = 10000;    // without the key
  bool partial_rotary = false;  // knows partial_rotary_factor
  double rotary_part = 1;       // without that key
  // Layers with a window have a rotation of their own, whose theta stands under this key beside rope_theta.
  std::string_view local_theta_key{};
  double local_rope_theta = 10000;  // without the key
  // Reads the rotations, after `read`; null: as most families have them (families.cpp).
  void (*read_rotations)(const ConfigReader& config, DecoderSpec& spec) = nullptr;
  std::string_view activation_key = "hidden_act", activation = "silu";
  bool yarn_means_longrope = false;  // in old files
  bool reads_dropout = false;        // has its own word on attention_dropout
  bool query_growth = false;         // has YaRN, with llama_4_scaling_beta
  bool extra_layers = false;         // files may have layers beyond the last, which predict further tokens
  bool mxfp4 = false;                // published with experts in MXFP4, which are widened when they are loaded
  DefaultSizes sizes{};
  std::span<const Wrapper> wrappers{};  // classes that hold such a text model
};

extern const Family llama_family, mistral_family, phi3_family, qwen2_family, qwen3_family, qwen3_moe_family,
    seed_oss_family, gpt_oss_family, ministral3_family, mixtral_family, smollm3_family, olmo2_family, olmo3_family,
    granite_family, glm4_family, glm4_moe_lite_family, gemma3_family, qwen3_5_family, qwen3_5_moe_family,
    qwen3_next_family, gemma4_family, nemotron_h_family;

// The names that Llama gave and most families kept.
std::span<const TensorName> llama_tensor_names();

// The names that OLMo 2 gave, with a norm after attention and MLP.
std::span<const TensorName> olmo_tensor_names();

// The names that LLaVA gave to a text model beside one of images, and to what else its files hold, and that several
// classes kept.
std::span<const TextNames> llava_text_names();
std::span<const std::string_view> llava_carried_names();
// Mistral3ForConditionalGeneration, which holds Mistral or Ministral 3.
std::span<const Wrapper> mistral3_wrappers();

// The names of Qwen3.5 and Qwen3-Next, with experts or without.
std::span<const TensorName> qwen3_5_tensor_names();

// Readers that several families share.

// Reads all that the OLMo families have in common: not their windows and rotations.
void read_olmo(const ConfigReader& config, DecoderSpec& spec);

// Layers that see `window` keys, from layer_types (one a layer), or without that key, those that `otherwise` says.
void read_windows(const ConfigReader& config, DecoderSpec& spec, std::int64_t window,
                  bool (*otherwise)(const ConfigReader& config, std::int64_t layer));
// Qwen's use_sliding_window, sliding_window and max_window_layers.
void read_qwen_windows(const ConfigReader& config, DecoderSpec& spec);
// All that the models with gated delta layers and gated attention have in common: not their MLP or experts.
void read_qwen3_5(const ConfigReader& config, DecoderSpec& spec);
// Experts beside a shared one with a gate: not whether their weights are renormalised, nor which layers have them.
// count, per_token: without the keys.
void read_qwen_experts(const ConfigReader& config, DecoderSpec& spec, std::int64_t count, std::int64_t per_token);
// router_aux_loss_coef, which counts where output_router_logits is true.
void read_router_loss(const ConfigReader& config, DecoderSpec& spec);

}  // namespace so
