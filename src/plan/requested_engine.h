// The engine's settings and its split as a request has them, before a plan decides who owns what.
#pragma once

#include <optional>

namespace so {

class ParameterLayout;
struct Backend;
struct EngineSettings;
struct PlacementOptions;
struct RunRequest;

EngineSettings engine_settings(const RunRequest& request);

// The units that the request leaves to the device; none: to be chosen. On the CPU device, which has one kind of memory,
// nothing is to be chosen: the host has all.
std::optional<int> requested_device_units(const PlacementOptions& request, const ParameterLayout& layout,
                                          const Backend& backend);

// The units of which ranks may keep slices alone, at most: none if there is one rank.
int most_gathered_units(const PlacementOptions& request, const ParameterLayout& layout, int ranks);

}  // namespace so
