// The parameters of a decoder: names, shapes and places, and the views the decoder computes with.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/families/family.h"
#include "model/spec.h"
#include "offload/parameter_layout.h"

namespace so {

// Throws Error for an unknown architecture, naming the known ones.
const Family& find_family(std::string_view architecture);

// Units of the forward pass: 0 the embedding, 1 .. layers the layers, layers + 1 the head.
inline int layer_unit(std::int64_t layer) { return static_cast<int>(layer) + 1; }
inline int head_unit(const DecoderSpec& spec) { return static_cast<int>(spec.layers) + 1; }

// All parameters in forward order, with Hugging Face names. Tied models have no lm_head of their own. Norms and biases
// take no weight decay.
std::vector<Parameter> make_parameters(const DecoderSpec& spec);

// Where in that list the decoder finds what it computes with.
struct ParameterIndex {
  struct Layer {
    // First of its joined group: qkv is q, k, v; gate_up is gate, up. -1: absent.
    int input_norm, qkv, qkv_bias, q_norm, k_norm, o, o_bias, post_attention_norm, gate_up, gate_up_bias, down,
        down_bias;
  };
  int embedding, final_norm, lm_head;  // lm_head == embedding when tied
  std::vector<Layer> layers;
};
ParameterIndex make_parameter_index(const DecoderSpec& spec, const ParameterLayout& layout);

// Parameters that take part in matrix products, for counting FLOPs: all but the embedding table (which is a gather,
// unless tied: then it is also the output projection), norms and biases.
std::int64_t matmul_parameters(const DecoderSpec& spec);

}  // namespace so
