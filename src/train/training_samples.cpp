#include "train/training_samples.h"

#include <algorithm>
#include <random>
#include <string>

#include "base/progress.h"

namespace so {

std::int64_t SampleRequest::most_tokens() const {
  std::size_t longest = 0;
  for (const SamplePrompt& prompt : prompts) longest = std::max(longest, prompt.ids.size());
  return static_cast<std::int64_t>(longest) + max_new_tokens;
}

TrainingSamples::TrainingSamples(Device& device, ModelOnDevice& model, WeightSource& weights, Stream& stream,
                                 const SampleRequest& request, std::int64_t batch_tokens)
    : request_(request), generator_(device, model, weights, stream, request.most_tokens(), batch_tokens) {}

std::optional<std::vector<Sample>> TrainingSamples::generate(std::int64_t step, const std::function<bool()>& stop) {
  generator_.forget();
  AnswerSettings settings;
  settings.max_new_tokens = request_.max_new_tokens;
  std::mt19937_64 unused;  // by what is greedy
  ProgressReport progress("generating samples");
  std::vector<Sample> samples;
  const std::size_t count = request_.prompts.size();
  for (const SamplePrompt& prompt : request_.prompts) {
    Sample sample;
    sample.step = step;
    sample.sample = static_cast<std::int64_t>(samples.size()) + 1;
    sample.prompt = prompt.text;
    try {
      Answer answer = generator_.answer(
          *request_.tokenizer, prompt.ids, settings, unused, [](const std::string&) {}, stop);
      if (answer.reason == "interrupted") return std::nullopt;
      sample.text = std::move(answer.text);
      sample.tokens = static_cast<std::int64_t>(answer.ids.size());
      sample.finish_reason = std::move(answer.reason);
    } catch (const LogitsError&) {
      sample.finish_reason = "not finite";  // what becomes of the run is for its steps to say
    }
    samples.push_back(std::move(sample));
    progress.update(static_cast<double>(samples.size()) / static_cast<double>(count),
                    fmt::format("{} of {}", samples.size(), count));
  }
  return samples;
}

}  // namespace so
