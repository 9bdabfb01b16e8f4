// What a decoder is made of. The decoder's code branches on this, never on a family's name.
#pragma once

#include <cstdint>
#include <string>

namespace so {

enum class RopeScaling : std::uint8_t { none, llama3 };

// Rotary position embedding. Frequencies are theta^(-2i/rotary_dim), then scaled.
struct RopeSpec {
  double theta = 10000;
  std::int64_t rotary_dim = 0;  // leading dimensions of a head that rotate
  RopeScaling scaling = RopeScaling::none;
  // llama3: wavelengths beyond original_positions / low_freq_factor are stretched by `factor`, those within
  // original_positions / high_freq_factor are kept, and those between are blended.
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  std::int64_t original_positions = 8192;
};

struct DecoderSpec {
  std::string architecture;  // Hugging Face class
  std::int64_t vocab = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0;
  std::int64_t max_positions = 0;
  float rms_epsilon = 1e-6f;
  bool qk_norm = false;         // RMSNorm of each query and key head before the rotation
  bool attention_bias = false;  // on q, k, v and o
  bool mlp_bias = false;
  bool tied_embeddings = false;
  RopeSpec rope;
  double initializer_range = 0.02;

  std::int64_t q_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  std::int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
};

}  // namespace so
