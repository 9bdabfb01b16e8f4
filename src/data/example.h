// From a record to a training example: the prompt template, tokenisation, what is trained, truncation.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/chat/chat_renderer.h"
#include "data/records.h"
#include "data/text_encoder.h"

namespace so {

// One document. Targets are *shifted*: targets[i] is what the model shall predict at position i, that is the id of
// token i+1 if that token is trained and kIgnored if not; the last one is kIgnored. A loss therefore compares logits
// row i with targets[i] and shifts nothing. (Labels in a token id record are transformers' labels, not shifted:
// targets[i] = labels[i+1].)
struct Example {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> targets;
  std::int32_t trained = 0;  // targets that are not kIgnored
  std::int32_t special = 0;  // special tokens that stood in the record's own text, in all of it
  // The text began with the tokenizer's first tokens, or ended with the end token, which were not put there again; the
  // chat template put an end token behind another one.
  bool begins_already = false, ends_already = false, ends_twice = false;
  bool truncated = false;  // the record had more than max_length tokens; its beginning was kept
};

inline constexpr std::int64_t kMaxDocumentTokens = std::int64_t{1} << 30;  // token offsets are 32-bit in a batch

struct ExampleOptions {
  std::int64_t max_length = 2048;  // tokens a document, from 2 to kMaxDocumentTokens
  bool train_on_prompt = false;    // train all of the text, not only the responses
  bool mask_history = false;       // of a conversation, train the assistant's last turn only
};

// The parts of a conversation that are trained.
TrainedTurns trained_turns(const ExampleOptions& options);

// Changes whenever a record would become another example; part of the token cache's key.
inline constexpr std::int32_t kTemplateVersion = 2;

// The published Alpaca template up to and with "### Response:\n". An empty input selects the variant without one.
std::string alpaca_prompt(const AlpacaRecord& record);

// Turns records into examples:
//   Alpaca      prompt + output + end token; the output and the end token are trained
//   text        text + end token; all of it is trained
//   token ids   exactly as given, nothing added; each document of a row that was packed by itself
//   prompt      prompt + completion + end token; the completion and the end token are trained
//   chat        the rendered text, nothing added; a token is trained if it has a byte of a trained piece
// The tokenizer's beginning-of-sequence token, if its template has one, comes first, but in a conversation, whose
// template says itself what comes first. Neither it nor the end token is added to a text that has it there. An Alpaca
// or prompt record is tokenised as one text, as the published training script does, wherever the prompt's tokens are a
// prefix of the result. Where they are not (the output's first characters merge with the prompt's last), prompt and
// output are tokenised apart, so that the boundary between what is trained and what is not is always exact. Const and
// thread-safe. The encoder must outlive it.
class ExampleBuilder {
 public:
  // Throws Error for a max_length out of range, and for a tokenizer whose template appends anything but its end token.
  ExampleBuilder(const TextEncoder& encoder, ExampleOptions options);

  // Throws Error (without a location) if text is to be encoded and the encoder has no end token, or if it gives an id
  // outside its vocabulary.
  // With a `pool` its threads share out long texts; not from inside a job of the pool then.
  Example build(const Record& record, ThreadPool* pool = nullptr) const;

  // The same; of a row of token ids that another program packed, each of its documents.
  std::vector<Example> build_all(const Record& record, ThreadPool* pool = nullptr) const;

  // The same of a conversation, which the chat template has made of the record.
  Example build_chat(const RenderedChat& chat) const;

 private:
  // A text with the template's first tokens, once.
  struct Encoded {
    std::vector<std::int32_t> ids;
    bool began;  // the text itself began with them
  };
  Encoded encode_document(std::string_view text, ThreadPool* pool) const;
  Example build_response(const std::string& prompt, const std::string& response, ThreadPool* pool) const;
  // `text`: what the ids end with, in which the end token may stand already.
  Example finish_text(Encoded encoded, std::string_view text, std::size_t response_begin) const;
  bool ends_with_end_token(std::span<const std::int32_t> ids, std::string_view text) const;
  void require_in_vocabulary(const std::vector<std::int32_t>& ids) const;
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens, ThreadPool* pool) const;
  std::int32_t count_special(const std::vector<std::int32_t>& ids) const;  // behind the template's first tokens
  Example finish(std::vector<std::int32_t> ids, std::vector<std::int32_t> labels) const;

  const TextEncoder& encoder_;
  ExampleOptions options_;
  std::optional<std::int32_t> end_token_;
  std::int32_t vocabulary_size_;
  std::size_t prefix_ = 0, suffix_ = 0;  // tokens that the tokenizer's template puts before and behind
};

}  // namespace so
