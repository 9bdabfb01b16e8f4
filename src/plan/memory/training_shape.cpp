#include "plan/memory/training_shape.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/sequence_slice.h"
#include "model/text_generator.h"

namespace so {

std::int64_t sample_batch_tokens(const TrainingShape& shape) { return std::min(prompt_piece, shape.sample_tokens); }

std::int64_t slice_tokens(const TrainingShape& shape) {
  return longest_slice(shape.micro_batch_tokens, shape.sequence);
}

std::int64_t filled(std::int64_t tokens, const TrainingShape& shape) {
  return shape.sequence > 1 ? std::max<std::int64_t>(tokens, shape.sequence) : tokens;
}

std::int64_t most_batch_tokens(const TrainingShape& shape) {
  return filled(std::max({shape.micro_batch_tokens, shape.evaluation_tokens, sample_batch_tokens(shape)}), shape);
}

ModelShape model_shape(const TrainingShape& shape) {
  return {.positions = std::max(shape.longest_document, shape.sample_tokens),
          .batch_tokens = std::max({slice_tokens(shape), longest_slice(shape.evaluation_tokens, shape.sequence),
                                    sample_batch_tokens(shape)}),
          .kept_tokens = slice_tokens(shape),
          .kept_sequence_tokens = filled(shape.micro_batch_tokens, shape),
          .longest_kept = shape.longest_document,
          .cache_rows = shape.sample_tokens,
          .sequence_tokens = most_batch_tokens(shape)};
}

std::string ranks_text(const TrainingShape& shape) {
  if (shape.ranks == 1) return "";
  if (shape.sequence == 1) return fmt::format("{} ranks x ", shape.ranks);
  const int groups = shape.ranks / shape.sequence;
  if (groups == 1) return fmt::format("{} ranks that split each row x ", shape.ranks);
  return fmt::format("{} groups of {} ranks that split each row x ", groups, shape.sequence);
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
