#include "plan/memory/training_shape.h"

#include <algorithm>

#include "model/text_generator.h"

namespace so {

std::int64_t sample_batch_tokens(const TrainingShape& shape) { return std::min(prompt_piece, shape.sample_tokens); }

ModelShape model_shape(const TrainingShape& shape) {
  return {.positions = std::max(shape.longest_document, shape.sample_tokens),
          .batch_tokens = std::max({shape.micro_batch_tokens, shape.evaluation_tokens, sample_batch_tokens(shape)}),
          .kept_tokens = shape.micro_batch_tokens,
          .cache_rows = shape.sample_tokens};
}

std::vector<std::int32_t> usual_documents(const TrainingShape& shape) {
  const double wanted = shape.usual_tokens > 0 ? shape.usual_tokens : static_cast<double>(shape.micro_batch_tokens);
  const auto tokens = static_cast<std::int64_t>(wanted);
  std::vector<std::int32_t> offsets{0};
  while (offsets.back() < tokens)
    offsets.push_back(static_cast<std::int32_t>(
        std::min(tokens, offsets.back() + std::max<std::int64_t>(1, shape.longest_document))));
  return offsets;
}

}  // namespace so
