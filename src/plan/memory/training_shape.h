// The sizes that a training run asks of the decoder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace so {

struct ModelShape;

struct TrainingShape {
  std::int64_t micro_batch_tokens = 0;                   // no micro-batch has more
  std::int64_t evaluation_tokens = 0;                    // no evaluation batch has more; 0: no evaluation
  std::int64_t longest_document = 0;                     // positions needed
  std::int64_t micro_batches = 1;                        // of a step and rank, at most
  double usual_tokens = 0;                               // of a micro-batch; 0: micro_batch_tokens
  std::int64_t documents = 0, evaluation_documents = 0;  // of the data, whose order is held
  int ranks = 1;                                         // that share a step, each with its slice of the state
  int sequence = 1;                                      // of these, those that split each micro-batch's tokens
  std::int64_t sample_tokens = 0;                        // a sample's prompt and continuation, at most; 0: no samples
};

// The tokens of a micro-batch that a rank has, at most.
std::int64_t slice_tokens(const TrainingShape& shape);
// `tokens`, or as many as there are ranks that split a batch if these are more.
std::int64_t filled(std::int64_t tokens, const TrainingShape& shape);
// The tokens of a batch of any kind, all slices together, at most.
std::int64_t most_batch_tokens(const TrainingShape& shape);

// The tokens of a sample that are read at a time, at most.
std::int64_t sample_batch_tokens(const TrainingShape& shape);

// The model on the device that such a run works with.
ModelShape model_shape(const TrainingShape& shape);

// Says who shares a step, in front of a micro-batch's size: "", "4 ranks x ", "2 groups of 2 ranks that split each row
// x ".
std::string ranks_text(const TrainingShape& shape);

// Documents as long as the longest that make up a usual micro-batch, as offsets.
std::vector<std::int32_t> usual_documents(const TrainingShape& shape);

}  // namespace so
