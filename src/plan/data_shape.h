// The sizes that a run's data asks of the decoder, and those it would ask with other options.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/batches.h"
#include "plan/memory/training_shape.h"
#include "plan/plan_question.h"

namespace so {

class DataShape {
 public:
  // The run's `options`; its `max_steps`, or else its `epochs`. The datasets must outlive it; `evaluation` may be null.
  DataShape(const Documents& data, const Documents* evaluation, const BatchOptions& options,
            std::optional<std::int64_t> max_steps, double epochs);

  // Exact for the run's own max_length. For a shorter one, for which the data would have to be tokenised anew, an upper
  // bound: records cut to it, the longest together.
  TrainingShape of(std::int64_t batch_size, std::int64_t gradient_accumulation_steps, std::int64_t max_length) const;
  TrainingShape of(const PlanKnobs& knobs) const {
    TrainingShape shape = of(knobs.batch_size, knobs.gradient_accumulation_steps, knobs.max_length);
    shape.ranks = knobs.gpus;
    shape.sequence = knobs.sequence_parallel_size;
    return shape;
  }

 private:
  std::int64_t longest_together(std::int64_t rows, std::int64_t max_length) const;

  const Documents& data_;
  const Documents* const evaluation_;
  const BatchOptions options_;
  const std::optional<std::int64_t> max_steps_;
  const double epochs_;
  mutable std::vector<std::int64_t> lengths_;  // the longest first, once asked for
};

}  // namespace so
