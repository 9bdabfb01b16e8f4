// config.json as tests of families write it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/config.h"
#include "support/errors.h"

namespace so::test {

inline DecoderSpec read_spec(const nlohmann::json& config) { return read_decoder_spec(config.dump(), "config.json"); }

// A small model of an architecture, with these keys beside or in place of the usual ones.
inline nlohmann::json config_of(const std::string& architecture,
                                const nlohmann::json& more = nlohmann::json::object()) {
  nlohmann::json config{{"architectures", {architecture}},
                        {"vocab_size", 100},
                        {"hidden_size", 32},
                        {"num_hidden_layers", 4},
                        {"num_attention_heads", 4},
                        {"num_key_value_heads", 2},
                        {"intermediate_size", 48},
                        {"max_position_embeddings", 64}};
  config.update(more);
  return config;
}

using Windows = std::vector<std::int64_t>;
inline Windows windows(const DecoderSpec& spec) {
  Windows result;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) result.push_back(spec.layer(layer).window);
  return result;
}

inline std::vector<bool> experts(const DecoderSpec& spec) {
  std::vector<bool> result;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) result.push_back(spec.layer(layer).experts);
  return result;
}

inline void expect_refused(const nlohmann::json& config, const std::vector<std::string>& needles) {
  expect_in(refusal([&] { read_spec(config); }), needles);
}

}  // namespace so::test
