#include "commands/inference/loaded_model.h"

namespace so {
namespace {

InferenceShape shape_of(std::int64_t capacity, std::int64_t batch_tokens) {
  InferenceShape shape;
  shape.batch_tokens = batch_tokens;
  shape.positions = shape.cache_capacity = capacity;
  shape.logits_rows = 1;
  return shape;
}

}  // namespace

LoadedModel::LoadedModel(const ModelFiles& model, Runtime& runtime, DType dtype, std::int64_t capacity,
                         std::int64_t batch_tokens)
    : inference_(model, runtime, model_formats(dtype), shape_of(capacity, batch_tokens), room_of(runtime.device())),
      generator_(runtime.device(), inference_.model(), inference_.weights(), inference_.stream(), capacity,
                 batch_tokens) {}

}  // namespace so
