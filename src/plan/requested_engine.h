// The engine's settings and its split as a request has them, before a plan decides who owns what.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "device/backend.h"
#include "model/spec.h"
#include "offload/engine_settings.h"
#include "options/run_request.h"

namespace so {

EngineSettings engine_settings(const RunRequest& request);

// The units that the request leaves to the device; none: to be chosen. On the CPU device, which has one kind of memory,
// nothing is to be chosen: the host has all. `late_embedding`: EngineSettings::late_embedding.
std::optional<int> requested_device_units(const PlacementOptions& request, const ParameterLayout& layout,
                                          const Backend& backend, bool late_embedding = false);

// Why the embedding cannot be updated late (EngineSettings::late_embedding), in words that follow a colon; none: it
// can.
std::optional<std::string> late_embedding_obstacle(const DecoderSpec& spec, const ParameterLayout& layout,
                                                   const RunRequest& request);

// The units of which ranks may keep slices alone, at most: none if there is one rank.
int most_gathered_units(const PlacementOptions& request, const ParameterLayout& layout, int ranks);

}  // namespace so
