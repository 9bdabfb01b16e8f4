// One table per family: the Hugging Face class, how its config.json reads, what its tensors are called.
// Adding a family is a file beside llama.cpp with such a table, a line in families.cpp, and a test.
#pragma once

#include <span>
#include <string_view>

#include "model/spec.h"

namespace so {

class ConfigReader;

// The parts of a decoder, in the order the forward pass uses them inside their unit. The q, k, v weights, their biases,
// and gate and up, lie next to each other and are used as one matrix.
enum class Role : std::uint8_t {
  embedding,
  input_norm,
  q,
  k,
  v,
  q_bias,
  k_bias,
  v_bias,
  q_norm,
  k_norm,
  o,
  o_bias,
  post_attention_norm,
  gate,
  up,
  gate_bias,
  up_bias,
  down,
  down_bias,
  final_norm,
  lm_head,
};

struct TensorName {
  Role role;
  std::string_view name;  // "{}" stands for the layer
};

struct Family {
  std::string_view architecture;
  std::span<const TensorName> names;
  // Fills `spec` from the keys that are this family's own; the common ones have been read (families.cpp).
  void (*read)(ConfigReader& config, DecoderSpec& spec);
};

extern const Family llama_family, qwen3_family;

// The names that Llama gave and most families kept.
std::span<const TensorName> llama_tensor_names();

}  // namespace so
