// The device's work for each unit of a decoder, in the terms that a plan counts in.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "model/spec.h"
#include "plan/offload_plan.h"

namespace so {

// Returns the work of one micro-batch with documents at these offsets. FLOPs are those of a large dense product that
// takes as long, so that attention and products of experts, which run at other rates, count for more than theirs; bytes
// are what the rest reads and writes at least. `reached` says what kernels of each kind do.
std::vector<UnitWork> unit_work(const DecoderSpec& spec, std::span<const std::int32_t> cu_seqlens, DType compute,
                                const Efficiencies& reached);

// Returns the share of a large dense product's rate that the products of a layer's MLP reach.
double mlp_share(const DecoderSpec& spec, std::int64_t layer, double tokens, const Efficiencies& reached);

}  // namespace so
