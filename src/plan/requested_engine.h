// The engine's settings and its split as a request has them, before a plan decides who owns what.
#pragma once

#include <optional>
#include <string>

#include "model/spec.h"

namespace so {

class ParameterLayout;
struct Backend;
struct EngineSettings;
struct PlacementOptions;
struct RunRequest;
struct StepOptions;

// The model as a run computes with it: with products in FP8, if the options ask for that. Throws Error where that
// cannot be. `model`: as the user called it.
DecoderSpec requested_spec(DecoderSpec spec, const StepOptions& options, const std::string& model);

EngineSettings engine_settings(const RunRequest& request);

// The units that the request leaves to the device; none: to be chosen. On the CPU device, which has one kind of memory,
// nothing is to be chosen: the host has all.
std::optional<int> requested_device_units(const PlacementOptions& request, const ParameterLayout& layout,
                                          const Backend& backend);

// The units of which ranks may keep slices alone, at most: none if there is one rank.
int most_gathered_units(const PlacementOptions& request, const ParameterLayout& layout, int ranks);

}  // namespace so
