// Positions beyond those that a model's config.json has, as a change of that file: what a run computes with, what it
// exports and what transformers reads are then one description.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "options/choices.h"

namespace so {

// A run asks for this. Without a factor it gets the least whole one that reaches max_length.
struct RopeRequest {
  RopeExtension kind = RopeExtension::automatic;
  std::optional<double> factor;
  std::int64_t max_length = 0;
};

// config.json for such a run: with linear and yarn "max_position_embeddings" times the factor, with none max_length;
// the scaling in "rope_parameters" if the file has that key (transformers 5), else in "rope_scaling"; everything else
// and its order kept. `origin` is what errors call the file. Throws Error where the combination has no meaning or
// another one than it seems to: a model that has a scaling of its own (which none keeps), a factor that does not reach
// max_length, rotations by layer type, and lengths at which the frequencies would depend on what was computed before.
std::string extended_config(const std::string& config_json, const std::string& origin, const RopeRequest& request);

}  // namespace so
