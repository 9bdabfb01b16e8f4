#include "train/sample_request.h"

#include <filesystem>

#include "base/error.h"
#include "base/file_system.h"
#include "base/log.h"
#include "data/sample_prompts.h"
#include "model/rope.h"

namespace so {

std::optional<SampleRequest> read_samples(const TrainOptions& options, const DecoderSpec& spec,
                                          const ModelEncoder& encoder) {
  if (!options.sample_prompts) return std::nullopt;
  if (!encoder.can_encode() && !path_exists(std::filesystem::path(options.model) / "tokenizer.json"))
    fail(
        "{}: there is no tokenizer.json, and --sample_prompts generates text; copy it from the model it belongs to, or "
        "leave --sample_prompts out",
        options.model);
  const Tokenizer& tokenizer = encoder.tokenizer();
  SampleRequest samples{read_sample_prompts(*options.sample_prompts, encoder), &tokenizer,
                        static_cast<int>(options.sample_max_new_tokens)};
  for (const SamplePrompt& prompt : samples.prompts) {
    const auto tokens = static_cast<std::int64_t>(prompt.ids.size());
    if (tokens > options.max_length)
      fail("{}: the prompt has {} tokens, and the run trains on texts of up to {} (--max_length); shorten it",
           prompt.where, tokens, options.max_length);
    if (tokens + samples.max_new_tokens > spec.max_positions)
      fail(
          "{}: the prompt's {} tokens and --sample_max_new_tokens {} exceed the model's limit of {} positions; lower "
          "--sample_max_new_tokens or shorten the prompt",
          prompt.where, tokens, samples.max_new_tokens, spec.max_positions);
  }
  log_info("samples: {} prompt{} of {}, up to {} tokens with what is generated", samples.prompts.size(),
           samples.prompts.size() == 1 ? "" : "s", *options.sample_prompts, samples.most_tokens());
  return samples;
}

void require_samples(const TrainingPlan& plan) {
  if (const int gathered = plan.engine.placement.gathered(); gathered > 0)
    fail(
        "--sample_prompts: the weights of {} layers are gathered from all ranks for each use, and one rank generates; "
        "give --gathered_layers 0, or leave --sample_prompts out",
        gathered);
}

}  // namespace so
