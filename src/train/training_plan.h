// What a training run will do and need, decided before anything large is allocated. Everything later reads the plan.
#pragma once

#include <cstdint>

#include "model/decoder.h"
#include "offload/engine.h"
#include "plan/memory_plan.h"
#include "train/runtime.h"

namespace so {

struct TrainingShape {
  std::int64_t micro_batch_tokens = 0;  // no micro-batch has more
  std::int64_t evaluation_tokens = 0;   // no evaluation batch has more; 0: no evaluation
  std::int64_t longest_document = 0;    // positions needed
};

struct TrainingPlan {
  DecoderSettings decoder;
  EngineSettings engine;
  TrainingShape shape;
  std::size_t activation_bytes = 0;  // the arena of forward and backward
  MemoryPlan memory;                 // all that the run will allocate, and what the process holds already
};

// `engine.compute`, AdamW and clipping are taken from `engine`; bucket_elements is an upper bound, lowered for models
// so small that a bucket would be most of them when `adjust_buckets`. Activations are recomputed if asked for, or, on
// `automatic`, if keeping them would not fit. Found by running the real decoder and engine on a dry device.
// Throws Error if it does not fit.
TrainingPlan plan_training(const DecoderSpec& spec, const ParameterLayout& layout, Runtime& runtime,
                           const TrainingShape& shape, EngineSettings engine, bool adjust_buckets,
                           Toggle activation_checkpointing);

// Refuses, from the config alone, a model whose weights, gradients and optimizer state exceed the host's memory, before
// its files are opened.
void require_state_fits(const DecoderSpec& spec, DType compute);

// Rows of logits that are worth having at a time.
std::int64_t choose_loss_chunk(std::int64_t vocab);

}  // namespace so
