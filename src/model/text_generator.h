// Continues token ids with a model that has a KV cache, and remembers what it has read.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "model/model_on_device.h"
#include "model/sampling.h"

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

class TextGenerator {
 public:
  // Works with the model's KV cache, arena and upload, on its stream. `capacity`: most tokens of a text and its
  // continuation, rows that the cache has. `batch_tokens`: most tokens that are read at a time. Takes memory for a row
  // of logits. All references must outlive it.
  TextGenerator(Device& device, ModelOnDevice& model, WeightSource& weights, Stream& stream, std::int64_t capacity,
                std::int64_t batch_tokens);

  // The continuation of `prompt`. What the last call read and wrote is not read again as far as the prompt begins with
  // it. `emit` gets the text as soon as it is certain; `stop` is asked before each token. The prompt and the answer
  // must fit the capacity. Throws LogitsError.
  Answer answer(
      const Tokenizer& tokenizer, std::span<const std::int32_t> prompt, const AnswerSettings& settings,
      std::mt19937_64& random, const std::function<void(const std::string&)>& emit,
      const std::function<bool()>& stop = [] { return false; });
  // The weights have changed: nothing that was read counts.
  void forget() { read_.clear(); }

 private:
  // Reads `ids` behind what the cache holds, and leaves the logits of the last one. Where the text has become so long
  // that it has another rotation (RopeRows), all of it is read anew.
  void feed(std::span<const std::int32_t> ids);
  void read(std::span<const std::int32_t> ids, std::int64_t text_tokens);
  std::int32_t sample_next(const SamplingOptions& sampling, std::mt19937_64& random);

  const std::int64_t capacity_, batch_tokens_, vocabulary_;
  ModelOnDevice& model_;
  WeightSource& weights_;
  Stream& stream_;
  Buffer logits_memory_, logits_host_;
  std::vector<std::int32_t> read_;  // whose keys and values the cache has
  std::int64_t rope_row_ = 0;       // with this row for their position 0
};

// A prompt is read a piece at a time, so that a long one needs no more activations than this many tokens take.
inline constexpr std::int64_t prompt_piece = 512;

}  // namespace so
