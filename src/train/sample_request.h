// The samples that `train` is asked for: their prompts, and when a run cannot make them.
#pragma once

#include <optional>

#include "data/model_encoder.h"
#include "model/spec.h"
#include "options/train_options.h"
#include "plan/training_plan.h"
#include "train/training_samples.h"

namespace so {

// Reads the prompts, if there are any to read. Throws Error for what the model has no tokenizer, and the model or the
// run's texts no length for. The encoder must outlive the result.
std::optional<SampleRequest> read_samples(const TrainOptions& options, const DecoderSpec& spec,
                                          const ModelEncoder& encoder);

// Throws Error if the run that was planned cannot make its samples, or only with other results of its steps.
void require_samples(const TrainingPlan& plan);

}  // namespace so
