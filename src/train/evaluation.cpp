#include "train/evaluation.h"

#include <array>
#include <span>
#include <vector>

#include "base/progress.h"

namespace so {

std::optional<EvaluationSums> evaluate(ModelOnDevice& model, WeightSource& weights, Stream& stream, Communicator& ranks,
                                       EvaluationIterator& batches, std::int64_t tokens,
                                       const std::function<void()>& idle, const std::function<bool()>& stop) {
  struct Part {
    double loss = 0;
    std::int64_t trained_tokens = 0, tokens = 0;
  };
  const auto size = static_cast<std::size_t>(ranks.size());
  const std::vector<std::int64_t> one_each(size, 1);
  std::vector<Part> parts(size);
  const std::int64_t rounds = batches.rounds();
  EvaluationSums sums;
  ProgressReport progress("evaluating");
  MicroBatch batch;
  for (std::int64_t round = 0; round < rounds; ++round) {
    if (stop()) return std::nullopt;
    Part own;
    if (batches.next(batch)) {
      const DeviceBatch views = model.upload().upload(stream, batch);
      model.decoder().forward_loss(stream, views, weights, model.arena(), model.upload().losses());
      own = {model.upload().sum_losses(stream), batch.trained_tokens, batch.tokens - batch.filler};
    } else {  // as the last round may have it
      idle();
    }
    ranks.all_gather(std::span<const Part>(&own, 1), one_each, std::span(parts));
    for (const Part& part : parts) {
      sums.loss += part.loss;
      sums.trained_tokens += part.trained_tokens;
      sums.tokens += part.tokens;
    }
    progress.update(static_cast<double>(sums.tokens) / static_cast<double>(tokens),
                    fmt::format("loss {:.4f}", sums.mean_loss()));
  }
  return sums;
}

}  // namespace so
