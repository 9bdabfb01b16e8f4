// Random weights and tokens, for measuring: no files, and nothing large made on the host.
#pragma once

#include <cstdint>

#include "data/batches.h"
#include "model/spec.h"
#include "offload/device_weights.h"
#include "offload/engine.h"
#include "ops/ops.h"

namespace so {

// As model/initialize.h has it, with other draws, made on the device. Waits.
void randomize(DeviceWeights& weights, const DecoderSpec& spec, const ParameterLayout& layout, Ops& ops,
               Stream& stream);

// The same for the engine's fp32 master weights, through a staging buffer on the device, and the weights made from
// them.
Buffer make_random_staging(Device& device, const ParameterLayout& layout);  // for plans, and for the drawing itself
void randomize(OffloadEngine& engine, const DecoderSpec& spec, Device& device, Ops& ops, Stream& stream);

// `documents` documents of `length` uniformly random tokens; every token's target is the next one of its document.
MicroBatch random_batch(const DecoderSpec& spec, std::int64_t documents, std::int64_t length, std::uint64_t seed);

}  // namespace so
