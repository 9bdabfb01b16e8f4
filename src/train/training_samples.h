// The samples of a training run: texts that its model generates between steps.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "data/sample_prompts.h"
#include "io/samples.h"
#include "model/text_generator.h"

namespace so {

// The prompts, and how far each is continued.
struct SampleRequest {
  std::vector<SamplePrompt> prompts;
  const Tokenizer* tokenizer = nullptr;
  int max_new_tokens = 0;

  // Counts the longest prompt and its continuation.
  std::int64_t most_tokens() const;
};

class TrainingSamples {
 public:
  // The memory is planned as TrainingShape::sample_tokens. All references must outlive it.
  TrainingSamples(Device& device, ModelOnDevice& model, WeightSource& weights, Stream& stream,
                  const SampleRequest& request, std::int64_t batch_tokens);

  // A greedy continuation of each prompt, of the weights as they are, after `step`. Changes nothing that training
  // reads. None once `stop`, which is asked before each token, says so. Shows progress when it takes long.
  std::optional<std::vector<Sample>> generate(std::int64_t step, const std::function<bool()>& stop);

 private:
  const SampleRequest& request_;
  TextGenerator generator_;
};

}  // namespace so
