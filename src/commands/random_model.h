// Random weights and tokens, for measuring: no files.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "data/batches.h"
#include "model/spec.h"
#include "offload/engine.h"
#include "offload/memory/device_weights.h"
#include "ops/ops.h"

namespace so {

// As model/initialize.h has it, with other draws, made on the device. Waits.
void randomize(DeviceWeights& weights, const DecoderSpec& spec, const ParameterLayout& layout, Ops& ops,
               Stream& stream);

// The same for the engine's fp32 master weights, drawn by the pool's threads where they lie, from nearly the normal
// distribution, and the weights made from them: models of tens of gigabytes are ready in seconds.
void randomize(OffloadEngine& engine, const DecoderSpec& spec, ThreadPool& pool, Stream& stream);

// `documents` documents of `length` uniformly random tokens; every token's target is the next one of its document.
MicroBatch random_batch(const DecoderSpec& spec, std::int64_t documents, std::int64_t length, std::uint64_t seed);

}  // namespace so
