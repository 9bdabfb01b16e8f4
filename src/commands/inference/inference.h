// A model loaded for running forward only: weights on the device, no optimizer state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/number_formats.h"
#include "checkpoint/source_model.h"
#include "model/model_on_device.h"
#include "offload/memory/device_weights.h"
#include "ops/runtime.h"
#include "plan/memory/memory_room.h"
#include "ranks/collectives/route.h"

namespace so {

struct InferenceShape {
  std::int64_t batch_tokens = 0;    // tokens of one forward call, at most
  std::int64_t positions = 0;       // longest document
  std::int64_t logits_rows = 0;     // rows of logits asked for at a time; 0: losses are wanted instead
  std::int64_t cache_capacity = 0;  // rows of the KV cache; 0: none
  int sequence = 1;                 // ranks that split each batch of batch_tokens
  CollectiveRoute collectives = CollectiveRoute::nccl;  // of theirs, where they have GPUs
};

class Inference {
 public:
  // Plans memory by a dry run, refuses what does not fit `room` (Error), then loads the weights. `exchange`, of the
  // ranks that split batches, outlives it; null: they are whole.
  Inference(const ModelFiles& model, Runtime& runtime, const NumberFormats& formats, const InferenceShape& shape,
            const MemoryRoom& room, SequenceExchange* exchange = nullptr);

  Stream& stream() { return *stream_; }
  WeightSource& weights() { return *weights_; }
  ModelOnDevice& model() { return *model_; }

 private:
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<DeviceWeights> weights_;
  std::unique_ptr<ModelOnDevice> model_;
};

}  // namespace so
