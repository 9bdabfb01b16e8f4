// A model that continues token ids, and remembers what it has read.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/model_files.h"
#include "commands/inference.h"
#include "data/tokenizer/tokenizer.h"
#include "model/sampling.h"
#include "options/option_groups.h"

namespace so {

// How an answer is made.
struct AnswerSettings {
  SamplingOptions sampling;
  int max_new_tokens = 128;
  bool stop_at_end = true;  // at the tokens at which generation stops
};

struct Answer {
  std::vector<std::int32_t> ids;
  std::string text;
  std::string reason;  // "eos", "length" or, where it was asked to stop, "interrupted"
};

class Speaker {
 public:
  // Loads the model. `capacity`: most tokens of a text and its continuation. `batch_tokens`: most tokens that are read
  // at a time. Throws Error if memory does not suffice.
  Speaker(const ModelFiles& model, Runtime& runtime, DType dtype, std::int64_t capacity, std::int64_t batch_tokens);

  // The continuation of `prompt`. What the last call read and wrote is not read again as far as the prompt begins with
  // it. `emit` gets the text as soon as it is certain; `stop` is asked before each token. The prompt and the answer
  // must fit the capacity.
  Answer answer(
      const Tokenizer& tokenizer, std::span<const std::int32_t> prompt, const AnswerSettings& settings,
      std::mt19937_64& random, const std::function<void(const std::string&)>& emit,
      const std::function<bool()>& stop = [] { return false; });

 private:
  void feed(std::span<const std::int32_t> ids);
  std::int32_t sample_next(const SamplingOptions& sampling, std::mt19937_64& random);

  std::int64_t capacity_, batch_tokens_, vocabulary_;
  Inference inference_;
  Buffer logits_memory_, logits_host_;
  std::vector<std::int32_t> read_;  // whose keys and values the cache has
};

// A prompt is read a piece at a time, so that a long one needs no more activations than this many tokens take.
inline constexpr std::int64_t prompt_piece = 512;

}  // namespace so
