// The engine's settings and its split as a request has them, before a plan decides who owns what.
#pragma once

#include <cstdint>
#include <optional>

#include "device/backend.h"
#include "offload/engine.h"
#include "options/run_request.h"

namespace so {

EngineSettings engine_settings(const RunRequest& request);

// Chooses the dtype that gradients are kept in: the compute dtype where a step has one micro-batch, so that a bf16
// gradient is rounded once, as in PyTorch; fp32 where micro-batches are added up. (The output projection's is added up
// over a few chunks of rows, and with a tied embedding over its two uses, and rounded as often.)
DType choose_gradient_dtype(DType compute, std::int64_t micro_batches);

// The units that the request leaves to the device; none: to be chosen. On the CPU device, which has one kind of memory,
// nothing is to be chosen: the host has all.
std::optional<int> requested_device_units(const PlacementOptions& request, const ParameterLayout& layout,
                                          const Backend& backend);

}  // namespace so
