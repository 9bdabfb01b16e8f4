#include "plan/data_shape.h"

#include <algorithm>
#include <functional>

namespace so {

DataShape::DataShape(const Documents& data, const Documents* evaluation, const BatchOptions& options,
                     std::optional<std::int64_t> max_steps, double epochs)
    : data_(data), evaluation_(evaluation), options_(options), max_steps_(max_steps), epochs_(epochs) {}

TrainingShape DataShape::of(std::int64_t batch_size, std::int64_t gradient_accumulation_steps,
                            std::int64_t max_length) const {
  TrainingShape shape;
  shape.documents = data_.size();
  shape.micro_batches = gradient_accumulation_steps;
  shape.longest_document = std::min(data_.counts().longest, max_length);
  const bool exact = max_length >= options_.max_length;
  if (exact) {
    BatchOptions options = options_;
    options.batch_size = batch_size;
    options.gradient_accumulation_steps = gradient_accumulation_steps;
    const BatchIterator batches(data_, options);
    shape.micro_batch_tokens =
        batches.max_micro_batch_tokens(max_steps_ ? *max_steps_ : batches.steps_in_epochs(epochs_));
  } else {
    shape.micro_batch_tokens = options_.packing ? batch_size * max_length : longest_together(batch_size, max_length);
  }
  if (!options_.packing)
    shape.usual_tokens = std::min(static_cast<double>(shape.micro_batch_tokens),
                                  static_cast<double>(batch_size) * static_cast<double>(data_.counts().tokens) /
                                      static_cast<double>(data_.size()));
  if (!evaluation_) return shape;
  const std::int64_t longest = std::min(evaluation_->counts().longest, max_length);
  shape.evaluation_documents = evaluation_->size();
  shape.evaluation_tokens = std::max(longest, shape.micro_batch_tokens);
  if (exact) shape.evaluation_tokens = EvaluationIterator(*evaluation_, shape.evaluation_tokens).max_batch_tokens();
  shape.longest_document = std::max(shape.longest_document, longest);
  return shape;
}

std::int64_t DataShape::longest_together(std::int64_t rows, std::int64_t max_length) const {
  if (lengths_.empty()) {
    for (std::int64_t i = 0; i < data_.size(); ++i) lengths_.push_back(data_.length(i));
    std::sort(lengths_.begin(), lengths_.end(), std::greater<>());
  }
  std::int64_t tokens = 0;
  const auto count = std::min(static_cast<std::size_t>(rows), lengths_.size());
  for (std::size_t i = 0; i < count; ++i) tokens += std::min(lengths_[i], max_length);
  return tokens;
}

}  // namespace so
