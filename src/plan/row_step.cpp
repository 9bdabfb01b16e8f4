#include "plan/row_step.h"

#include <limits>

#include "base/error.h"
#include "base/log.h"

namespace so {

void require_rows(std::int64_t rows, std::int64_t length, const DecoderSpec& spec, const std::string& origin) {
  if (length > spec.max_positions)
    log_info("--max_length {} is beyond the {} positions in {}: to train so, add --rope_scaling to superoffload train",
             length, spec.max_positions, origin);
  if (rows * length > std::numeric_limits<std::int32_t>::max())
    fail("--batch_size {} of --max_length {} are too many tokens", rows, length);
}

std::vector<std::int32_t> row_offsets(std::int64_t rows, std::int64_t length) {
  std::vector<std::int32_t> offsets;
  for (std::int64_t row = 0; row <= rows; ++row) offsets.push_back(static_cast<std::int32_t>(row * length));
  return offsets;
}

TrainingShape row_shape(const PlanKnobs& knobs) {
  TrainingShape shape;
  shape.micro_batch_tokens = knobs.batch_size * knobs.max_length;
  shape.longest_document = knobs.max_length;
  shape.micro_batches = knobs.gradient_accumulation_steps;
  shape.ranks = knobs.gpus;
  shape.sequence = knobs.sequence_parallel_size;
  return shape;
}

TrainingShape largest_shape(const PlanKnobs& knobs, bool evaluates) {
  constexpr std::int64_t documents = 100'000;  // as many as do not matter
  TrainingShape shape = row_shape(knobs);
  shape.documents = documents;
  if (evaluates) {
    shape.evaluation_tokens = shape.micro_batch_tokens;
    shape.evaluation_documents = documents;
  }
  return shape;
}

}  // namespace so
