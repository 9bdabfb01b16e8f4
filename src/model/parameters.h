// The parameters of a decoder: names, shapes and places, and the views the decoder computes with.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/families/family.h"
#include "model/parameter_rules.h"
#include "model/spec.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

// Throws Error for an unknown architecture, naming the known ones.
const Family& find_family(std::string_view architecture);

// The row of the spec's family for the class that holds the text model; null: it stands by itself.
const Wrapper* find_wrapper(const DecoderSpec& spec);

// Units of the forward pass: 0 the embedding, with what makes the inputs of layers, and their scales, 1 .. layers the
// layers, layers + 1 the head.
inline int layer_unit(std::int64_t layer) { return static_cast<int>(layer) + 1; }
inline int head_unit(const DecoderSpec& spec) { return static_cast<int>(spec.layers) + 1; }

// All parameters in forward order, with Hugging Face names. Tied models have no lm_head of their own. Norms and biases
// take no weight decay, as in transformers' Trainer, which goes by names: A_log does, dt_bias does not. The scales of
// layers are frozen: they are no parameters there.
std::vector<Parameter> make_parameters(const DecoderSpec& spec);
// The same with what a run says of them; lm_head.weight is another name of a tied embedding, and what the files of a
// model of text and more can call a parameter (stored_names.h) is another name of it. Throws Error.
std::vector<Parameter> make_parameters(const DecoderSpec& spec, const ParameterRules& rules);

// Parameters by unit, and their sum, without making the list: a step's report asks for it.
std::vector<std::int64_t> unit_parameter_counts(const DecoderSpec& spec);
std::int64_t parameter_count(const DecoderSpec& spec);

// Parameters that lie next to each other and are used as one.
struct Joined {
  int first = -1, count = 0;
  explicit operator bool() const { return first >= 0; }
};

// Where in that list the decoder finds the parameters that it computes with; those that a layer lacks are empty.
struct ParameterIndex {
  struct Layer {
    Joined scale;  // in unit 0, as all layers' are: so their own units are trained whole
    Joined input_norm, qkv, qkv_bias, q_norm, k_norm, sinks;
    Joined q_latent_norm, q_heads, kv_latent_norm, kv_heads;  // of a layer with latents, which are its qkv
    Joined o, o_bias, attention_output_norm, mlp_norm;
    // A delta layer and a state space have these; their qkv and o are the first and last product.
    Joined convolution, convolution_bias, a_log, dt_bias, skip, state_norm;
    Joined router, router_bias;  // in a layer with experts, whose next four are of all experts
    Joined gate_up, gate_up_bias, down, down_bias;
    Joined shared_gate_up, shared_down, shared_output_gate;
    Joined shared_output_norm, experts_input_norm, experts_output_norm, router_norm, expert_scale;
    Joined mlp_output_norm;
    Joined layer_input_gate, layer_input_out, layer_input_output_norm;
  };
  int embedding, final_norm, lm_head;  // lm_head == embedding when tied
  Joined layer_input_table, layer_input_projection, layer_input_norm;
  std::vector<Layer> layers;
};
ParameterIndex make_parameter_index(const DecoderSpec& spec, const ParameterLayout& layout);

// Parameters of a layer that one token meets in matrix products, for counting FLOPs: norms and biases do not count, and
// of the experts, those chosen do.
std::int64_t matmul_parameters(const DecoderSpec& spec, std::int64_t layer);
// Counts the whole model's. The embedding table is a gather and does not count, unless it is tied: then it is also the
// output projection.
std::int64_t matmul_parameters(const DecoderSpec& spec);

}  // namespace so
