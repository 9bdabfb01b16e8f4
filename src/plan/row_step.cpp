#include "plan/row_step.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace so {

void require_rows(std::int64_t rows, std::int64_t length, const DecoderSpec& spec, const std::string& origin) {
  if (length > spec.max_positions)
    fail("--max_length {}: the model's limit is {} (max_position_embeddings in {})", length, spec.max_positions,
         origin);
  if (rows * length > std::numeric_limits<std::int32_t>::max())
    fail("--batch_size {} of --max_length {} are too many tokens", rows, length);
}

std::vector<std::int32_t> row_offsets(std::int64_t rows, std::int64_t length) {
  std::vector<std::int32_t> offsets;
  for (std::int64_t row = 0; row <= rows; ++row) offsets.push_back(static_cast<std::int32_t>(row * length));
  return offsets;
}

EngineSettings engine_as_in_train(DType compute, std::int64_t bucket_size, StatePrecision state) {
  const TrainOptions as_train;
  EngineSettings engine;
  engine.compute = compute;
  engine.bucket_elements = bucket_size / static_cast<std::int64_t>(sizeof(float));
  engine.moments = moments_dtype(state);
  engine.adamw = {as_train.adam_beta1, std::min(as_train.adam_beta2, largest_beta2(state)), as_train.adam_epsilon};
  engine.weight_decay = as_train.weight_decay;
  engine.max_grad_norm = as_train.max_grad_norm;
  return engine;
}

}  // namespace so
