// The description of a decoder. The decoder's code branches on this, never on a family's name.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace so {

enum class RopeScaling : std::uint8_t {
  none,
  linear,
  llama3,
  yarn,
  longrope,
  dynamic,  // none within max_positions; beyond, transformers' frequencies depend on what was computed before
};

// Rotary position embedding. Frequencies are theta^(-2i/rotary_dim), then scaled.
struct RopeSpec {
  double theta = 10000;
  std::int64_t rotary_dim = 0;   // leading dimensions of a head that rotate
  std::int64_t still_pairs = 0;  // the last of their pairs, which have the frequency 0 and so stay as they are
  RotaryPairs pairs = RotaryPairs::halves;
  RopeScaling scaling = RopeScaling::none;
  double attention_factor = 1;  // cosines and sines are multiplied by it
  std::int64_t original_positions = 8192;
  double factor = 1;  // linear (every frequency is divided by it), llama3, yarn, dynamic
  // llama3: wavelengths beyond original_positions / low_freq_factor are stretched by `factor`, those within
  // original_positions / high_freq_factor are kept, and those between are blended.
  double low_freq_factor = 1, high_freq_factor = 4;
  // yarn: dimensions that turn more than beta_fast times within original_positions are kept, those that turn less than
  // beta_slow times are stretched, and those between are blended; truncate: the bounds are whole dimensions.
  // [YaRN, Peng et al. 2023]
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  // Behind the rotation, queries alone are multiplied by 1 + query_growth ln(1 + floor(position / original_positions)),
  // so that attention stays as sharp among more keys. Above 0, whole heads rotate. [Llama 4, Meta 2025]
  double query_growth = 0;
  // longrope: each frequency's own divisor, for tables within original_positions and beyond. [LongRoPE, Ding et al.
  // 2024]
  std::vector<double> short_factor, long_factor;
};

// The heads of a layer's attention, and how its projections lie: the queries of a token, each head followed by its gate
// if there are gates, its keys, and its values.
struct AttentionShape {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool output_gate = false;
  bool keys_are_values = false;  // values have no projection: they are the keys as projected, before norm and rotation
  bool value_norm = false;       // RMSNorm of each value head, without a weight
  // Keys and values are another layer's (LayerSpec::keys_of): there is no projection of either.
  bool takes_keys = false;

  std::int64_t q_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  // Columns of a token's queries among its projections, their gates included.
  std::int64_t projected_q_width() const { return output_gate ? 2 * q_width() : q_width(); }
  std::int64_t qkv_width() const {
    return projected_q_width() + (takes_keys ? 0 : keys_are_values ? 1 : 2) * kv_width();
  }
  // Columns of rotated queries and keys, where they do not lie in the projections, with values if they are normed.
  std::int64_t rotated_width() const { return q_width() + (takes_keys ? 0 : value_norm ? 2 : 1) * kv_width(); }
};

// What layers without a window have in place of DecoderSpec's, in a model whose layers with one have other heads.
struct GlobalHeads {
  std::int64_t kv_heads = 0, head_dim = 0;
  bool keys_are_values = false;  // AttentionShape
};

// A mixture of experts, where a layer has one.
struct ExpertSpec {
  std::int64_t count = 0;         // 0: the model has none
  std::int64_t per_token = 0;     // chosen for each token
  std::int64_t intermediate = 0;  // of one expert
  RouterRule::Scores scores = RouterRule::Scores::softmax;
  bool renormalized = false;  // the weights of those chosen add up to 1, or to the scale
  double scale = 1;           // multiplies the weights
  // What is added to scores where experts are chosen, and only there, is fixed: it is neither trained nor a parameter.
  bool selection_bias = false;
  bool router_bias = false;
  bool biases = false;  // on both products
  // Files have all of a layer's experts as one tensor. Where a family is published in both ways, this is the usual one
  // until the files are looked at (model/stored_names.h).
  bool stacked = false;
  ExpertLayout layout = ExpertLayout::out_in;
  ExpertActivation activation;
  // Beside those chosen, every token goes to a shared expert, an MLP with the activation of layers without experts; 0:
  // there is none. With a gate its output counts sigmoid(<the token, a weight>).
  std::int64_t shared_intermediate = 0;
  bool shared_gate = false;
  // The shared expert is an MLP as layers without experts have it. It and the experts have norms of their own before
  // and behind them, and so has the router before it, all of the residual stream (decoder/dense_with_experts.h).
  bool shared_apart = false;
  double router_scale = 1;     // multiplies the router's logits
  bool expert_scales = false;  // a learned factor of each expert on what it counts
  double balance = 0;  // the router's load-balancing loss is added to the loss times this [Switch, Fedus et al. 2021]
};

// How the tokens of a layer learn of each other.
enum class TokenMixer : std::uint8_t {
  attention,
  gated_delta,  // a state that every token changes, behind a short convolution [Gated DeltaNet, Yang et al. 2024]
  latent,       // attention whose queries, keys and values are made of few columns a token [MLA, DeepSeek-AI 2024]
  state_space,  // a state that decays and is added to, behind a short convolution [Mamba2, Dao & Gu 2024]
  none,         // they do not: the layer is an MLP or experts alone
};

// Attention by latents, where a layer has it. A token's first product makes a latent of its queries, one of its keys
// and values, and the part of its keys that rotates, which all heads share. Each latent has a norm, and a second
// product makes heads of it. A head's queries and keys begin with the part that does not rotate; its values are as
// wide.
struct LatentSpec {
  std::int64_t q_rank = 0, kv_rank = 0;   // columns of the latents
  std::int64_t still_dim = 0, v_dim = 0;  // of a head: what does not rotate of its queries and keys, and its values
  std::int64_t rotary_dim = 0;            // the rest
  float norm_epsilon = 1e-6f;             // of the latents' norms

  std::int64_t projected_width() const { return q_rank + kv_rank + rotary_dim; }
};

// The gated delta rule, where a layer has it. Value head h reads and writes with key head h / (v_heads / k_heads).
struct DeltaSpec {
  std::int64_t k_heads = 0, v_heads = 0, k_dim = 0, v_dim = 0;
  std::int64_t convolution = 0;  // tokens that its causal convolution sees, their own included
  // The rows of the first products' weights are sorted by key head (decoder/key_head_order.h), and not those of the
  // convolution.
  bool by_key_head = false;

  std::int64_t k_width() const { return k_heads * k_dim; }
  std::int64_t v_width() const { return v_heads * v_dim; }
  // A token's projections lie in this order: queries, keys and values, which are convolved; the gate of the output, as
  // wide as the values; and two columns of a value head, for how much it learns and how much it forgets.
  std::int64_t convolved_width() const { return 2 * k_width() + v_width(); }
  std::int64_t projected_width() const { return convolved_width() + v_width() + 2 * v_heads; }
};

// A state space, where a layer has one. Head h reads and writes with group h / (heads / groups).
struct StateSpaceSpec {
  std::int64_t heads = 0, head_dim = 0, groups = 0, state = 0;  // state: numbers of a head's state for each of head_dim
  std::int64_t convolution = 0;  // tokens that its causal convolution sees, their own included
  bool convolution_bias = false;
  // Steps are at least as large as the first. The three say what the bias of steps is drawn from in a model that has no
  // weights yet.
  double least_step = 0, most_step = 0, floor_step = 0;

  std::int64_t width() const { return heads * head_dim; }
  // A token's projections lie in this order: the gate of the output, what is convolved (the values, and what each group
  // writes and reads with), and a column of each head, for its step.
  std::int64_t convolved_width() const { return width() + 2 * groups * state; }
  std::int64_t projected_width() const { return width() + convolved_width() + heads; }
};

// Which rotation the queries and keys of a layer take.
enum class LayerRotation : std::uint8_t {
  global,  // DecoderSpec::rope
  local,   // DecoderSpec::local_rope
  none,    // positions are not told [NoPE, Kazemnejad et al. 2023]
};

struct LayerSpec {
  std::int64_t window = 0;  // keys a query sees, its own included; 0: all before it
  bool experts = false;
  LayerRotation rotation = LayerRotation::global;
  TokenMixer mixer = TokenMixer::attention;
  bool mlp = true;  // whether there is a second block, an MLP or experts, or with TokenMixer::none an only one
  std::int64_t intermediate = 0;  // of its MLP; 0: DecoderSpec's
  // The layer below whose keys, rotated, and values it attends to, a layer with the same heads and window; -1: its own.
  std::int64_t keys_of = -1;
  // Products of its attention and of its MLP, if that is no expert, are in FP8: the run's choice (model/fp8_layers.h).
  bool fp8 = false;
  bool operator==(const LayerSpec&) const = default;
};

struct DecoderSpec {
  std::string architecture;  // Hugging Face class
  std::string wrapper;       // class of the model that it is the text model of, if it is one of text and more
  // Heads are a layer's own: shape() has them.
  std::int64_t vocab = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0;
  std::optional<GlobalHeads> global_heads;
  std::int64_t max_positions = 0;
  float rms_epsilon = 1e-6f;
  // RMSNorms of a layer: of what attention and MLP read, and of what they add to the residual stream.
  bool input_norms = true, output_norms = false;
  float norm_offset = 0;         // added to every norm's stored weight, but for that of a delta layer's output
  bool qk_norm = false;          // RMSNorm of each query and key head before the rotation
  bool value_norm = false;       // AttentionShape
  bool projection_norm = false;  // RMSNorm of all query heads of a token as one, and of all key heads
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool sinks = false;  // a learned logit of each head in the softmax's sum (AttentionSpans)
  // Attention's output is multiplied by sigmoid(gate): each query head is followed by its gate.
  bool output_gate = false;
  bool tied_embeddings = false;
  MlpActivation gate = MlpActivation::silu;  // of layers without experts; those of all layers have a gate, or none has
  double attention_scale = 0;                // multiplies q.k; 0: 1 / sqrt(head_dim)
  double embedding_scale = 1;                // multiplies the rows of the embedding table
  bool round_embedding_scale = false;        // to the activations' format, as that of layer_input's table
  double residual_scale = 1;                 // multiplies what attention and MLP add to the residual stream
  double logits_scale = 1;                   // multiplies the logits
  double logits_cap = 0;                     // above 0, logits become cap tanh(logits / cap)
  // A layer's output, what came in included, is multiplied by a number of its own, which is not trained.
  bool layer_scales = false;
  bool final_norm_decays = false;  // the last norm's weight decays as matrices do, since transformers goes by names
  // Above 0, every layer ends with a part that reads so many numbers of each token, which are the layer's own. They are
  // made below the layers, of a table's rows and of the embedding (decoder/layer_inputs.h). [Gemma 3n]
  std::int64_t layer_input = 0;
  std::int64_t layer_input_vocab = 0;  // rows of that table
  RopeSpec rope;
  std::optional<RopeSpec> local_rope;
  ExpertSpec experts;
  DeltaSpec delta;
  LatentSpec latent;
  StateSpaceSpec state_space;
  std::vector<LayerSpec> layer_specs;  // by layer; empty: every layer is a plain one
  double initializer_range = 0.02;
  // The values of ExpertSpec::selection_bias as the model's files have them, [layers, experts.count] with zeros for
  // layers without experts; empty: no files were read, and all are zero.
  std::vector<float> selection_biases;
  std::vector<std::string> remarks;  // what config.json asks for and is not done, a line each

  // The class that config.json names.
  const std::string& class_name() const { return wrapper.empty() ? architecture : wrapper; }
  LayerSpec layer(std::int64_t i) const {
    return layer_specs.empty() ? LayerSpec{} : layer_specs.at(static_cast<std::size_t>(i));
  }
  // The heads of a layer, if it attends.
  AttentionShape shape(std::int64_t i) const {
    const bool global = global_heads && layer(i).window == 0, takes_keys = layer(i).keys_of >= 0;
    return {.heads = heads,
            .kv_heads = global ? global_heads->kv_heads : kv_heads,
            .head_dim = global ? global_heads->head_dim : head_dim,
            .output_gate = output_gate,
            .keys_are_values = global && global_heads->keys_are_values && !takes_keys,
            .value_norm = value_norm && !takes_keys,
            .takes_keys = takes_keys};
  }
  // Whether layers attend to keys of others, and whether a layer's are attended to by one above it.
  bool shares_keys() const {
    for (const LayerSpec& l : layer_specs)
      if (l.keys_of >= 0) return true;
    return false;
  }
  bool gives_keys(std::int64_t i) const {
    for (const LayerSpec& l : layer_specs)
      if (l.keys_of == i) return true;
    return false;
  }
  float score_scale(std::int64_t i) const {
    return attention_scale != 0 ? static_cast<float>(attention_scale)
                                : 1.0f / std::sqrt(static_cast<float>(shape(i).head_dim));
  }
  bool is_delta(std::int64_t i) const { return layer(i).mixer == TokenMixer::gated_delta; }
  bool has_delta() const {
    for (const LayerSpec& l : layer_specs)
      if (l.mixer == TokenMixer::gated_delta) return true;
    return false;
  }
  bool has_fp8() const {
    for (const LayerSpec& l : layer_specs)
      if (l.fp8) return true;
    return false;
  }
  bool is_latent(std::int64_t i) const { return layer(i).mixer == TokenMixer::latent; }
  bool is_state_space(std::int64_t i) const { return layer(i).mixer == TokenMixer::state_space; }
  bool has_state_space() const {
    for (const LayerSpec& l : layer_specs)
      if (l.mixer == TokenMixer::state_space) return true;
    return false;
  }
  // Whether a layer's tokens attend to others, and so whether it has keys and values in a cache.
  bool attends(std::int64_t i) const { return layer(i).mixer == TokenMixer::attention || is_latent(i); }
  bool has_mixer(std::int64_t i) const { return layer(i).mixer != TokenMixer::none; }
  // Columns that the first product of a layer makes of a token, and that its tokens' mixer gives to the last.
  std::int64_t projected_width(std::int64_t i) const {
    if (!has_mixer(i)) return 0;
    if (is_latent(i)) return latent.projected_width();
    if (is_state_space(i)) return state_space.projected_width();
    return is_delta(i) ? delta.projected_width() : shape(i).qkv_width();
  }
  // Parameters of a layer's second products, which make heads of latents.
  std::int64_t latent_parameters(std::int64_t i) const {
    if (!is_latent(i)) return 0;
    return latent.q_rank * shape(i).q_width() + latent.kv_rank * heads * (latent.still_dim + latent.v_dim);
  }
  std::int64_t mixed_width(std::int64_t i) const {
    if (!has_mixer(i)) return 0;
    if (is_state_space(i)) return state_space.width();
    return is_delta(i) ? delta.v_width() : shape(i).q_width();
  }
  std::int64_t expert_layers() const {
    std::int64_t n = 0;
    for (const LayerSpec& l : layer_specs) n += l.experts;
    return n;
  }
  std::int64_t dense_layers() const {  // with an MLP, and no experts in its place
    std::int64_t n = 0;
    for (std::int64_t i = 0; i < layers; ++i) n += layer(i).mlp && !layer(i).experts;
    return n;
  }
  // Numbers of a token that its layers read besides the stream, of all layers.
  std::int64_t layer_inputs_width() const { return layers * layer_input; }
  // Matrices of an MLP: gate and up, or up alone, and down.
  std::int64_t mlp_matrices() const { return inputs_of(gate) + 1; }
  // Columns of up, and of gate if there is one, of a layer without experts.
  std::int64_t dense_width(std::int64_t i) const {
    const std::int64_t own = layer(i).intermediate;
    return !layer(i).mlp ? 0 : own > 0 ? own : intermediate;
  }
  // Columns of up that one token has in a layer: in a shared expert, and in all.
  std::int64_t shared_width(std::int64_t i) const { return layer(i).experts ? experts.shared_intermediate : 0; }
  std::int64_t mlp_width(std::int64_t i) const {
    return layer(i).experts ? experts.per_token * experts.intermediate + experts.shared_intermediate : dense_width(i);
  }
};

}  // namespace so
