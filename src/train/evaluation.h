// The loss of a model on records, without training: train's evaluation and the command `eval`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "data/batches.h"
#include "model/model_on_device.h"
#include "ranks/communicator.h"

namespace so {

struct EvaluationSums {
  double loss = 0;
  std::int64_t trained_tokens = 0, tokens = 0;
  double mean_loss() const { return loss / static_cast<double>(trained_tokens); }
};

// Runs `model` forward over all of `batches`, of which each rank's iterator yields its share, and returns the sums over
// all ranks, the same on each. They are added in the order of the batches, whichever rank had them. Shows progress
// towards `tokens` when it takes long. `idle` is called in the place of a batch that this rank lacks and others have. A
// collective; none, on every rank, once `stop`, which the ranks decide together, says so before a batch.
std::optional<EvaluationSums> evaluate(
    ModelOnDevice& model, WeightSource& weights, Stream& stream, Communicator& ranks, EvaluationIterator& batches,
    std::int64_t tokens, const std::function<void()>& idle = [] {},
    const std::function<bool()>& stop = [] { return false; });

}  // namespace so
