// A model that was loaded to continue token ids.
#pragma once

#include <cstdint>

#include "checkpoint/source_model.h"
#include "commands/inference/inference.h"
#include "model/text_generator.h"

namespace so {

class LoadedModel {
 public:
  // Loads the model. `capacity`: most tokens of a text and its continuation. `batch_tokens`: most tokens that are read
  // at a time. Throws Error if memory does not suffice.
  LoadedModel(const ModelFiles& model, Runtime& runtime, DType dtype, std::int64_t capacity, std::int64_t batch_tokens);

  TextGenerator& generator() { return generator_; }

 private:
  Inference inference_;
  TextGenerator generator_;
};

}  // namespace so
