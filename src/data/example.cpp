#include "data/example.h"

#include <algorithm>

#include "base/error.h"

namespace so {

TrainedTurns trained_turns(const ExampleOptions& options) {
  if (options.train_on_prompt) return TrainedTurns::all;
  return options.mask_history ? TrainedTurns::last : TrainedTurns::assistant;
}

std::string alpaca_prompt(const AlpacaRecord& record) {
  if (record.input.empty())
    return fmt::format(
        "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\n{}\n\n### Response:\n",
        record.instruction);
  return fmt::format(
      "Below is an instruction that describes a task, paired with an input that provides further context. "
      "Write a response that appropriately completes the request.\n\n"
      "### Instruction:\n{}\n\n### Input:\n{}\n\n### Response:\n",
      record.instruction, record.input);
}

ExampleBuilder::ExampleBuilder(const TextEncoder& encoder, ExampleOptions options)
    : encoder_(encoder),
      options_(options),
      end_token_(encoder.end_token()),
      vocabulary_size_(encoder.vocabulary_size()) {
  if (options_.max_length < 2)
    fail("max_length is {}; it must be at least 2, since the last token of a document predicts nothing",
         options_.max_length);

  if (options_.max_length > kMaxDocumentTokens)
    fail("max_length is {}; the limit is {}", options_.max_length, kMaxDocumentTokens);

  if (!encoder.can_encode()) return;
  // The tokens that the tokenizer's template appends must not end up between prompt and output: count them.
  const std::vector<std::int32_t> plain = encoder.encode("a", false), decorated = encoder.encode("a", true);
  const auto found = std::find_end(decorated.begin(), decorated.end(), plain.begin(), plain.end());
  if (found == decorated.end() && !plain.empty())
    fail("the tokenizer encodes a text otherwise with special tokens than without; such a template is not supported");
  prefix_ = static_cast<std::size_t>(found - decorated.begin());
  suffix_ = static_cast<std::size_t>(decorated.end() - found) - plain.size();
  for (auto token = decorated.end() - static_cast<std::ptrdiff_t>(suffix_); token != decorated.end(); ++token)
    if (*token != end_token_)
      fail("the tokenizer's template appends token {} to a text; only its end token is supported there", *token);
}

std::vector<std::int32_t> ExampleBuilder::encode(std::string_view text, bool add_special_tokens,
                                                 ThreadPool* pool) const {
  return pool != nullptr ? encoder_.encode_shared(text, add_special_tokens, *pool)
                         : encoder_.encode(text, add_special_tokens);
}

ExampleBuilder::Encoded ExampleBuilder::encode_document(std::string_view text, ThreadPool* pool) const {
  Encoded encoded{encode(text, true, pool), false};
  std::vector<std::int32_t>& ids = encoded.ids;
  SO_CHECK(ids.size() >= prefix_ + suffix_, "{} tokens, of which the template puts {} around it", ids.size(),
           prefix_ + suffix_);
  ids.resize(ids.size() - suffix_);
  const auto own = ids.begin() + static_cast<std::ptrdiff_t>(prefix_);
  encoded.began = prefix_ > 0 && ids.size() >= 2 * prefix_ && std::equal(ids.begin(), own, own);
  if (encoded.began) ids.erase(ids.begin(), own);
  return encoded;
}

Example ExampleBuilder::build(const Record& record, ThreadPool* pool) const {
  if (const auto* tokens = std::get_if<TokenRecord>(&record)) return finish(tokens->ids, tokens->labels);

  if (!encoder_.can_encode()) (void)encoder_.encode({}, false);  // throws, and knows why
  if (!end_token_)
    fail(
        "the tokenizer has no end token, so the model could not learn to stop; name one as \"eos_token\" in "
        "tokenizer_config.json");
  if (const auto* text = std::get_if<TextRecord>(&record))
    return finish_text(encode_document(text->text, pool), text->text, 0);
  if (const auto* pair = std::get_if<PromptRecord>(&record))
    return build_response(pair->prompt, pair->completion, pool);
  const auto* alpaca = std::get_if<AlpacaRecord>(&record);
  SO_CHECK(alpaca != nullptr, "a conversation is built of its rendered text");
  return build_response(alpaca_prompt(*alpaca), alpaca->output, pool);
}

std::vector<Example> ExampleBuilder::build_all(const Record& record, ThreadPool* pool) const {
  const auto* tokens = std::get_if<TokenRecord>(&record);
  if (tokens == nullptr || tokens->ends.size() < 2) return {build(record, pool)};
  std::vector<Example> documents;
  std::int64_t begin = 0;
  for (const std::int64_t end : tokens->ends) {
    documents.push_back(finish({tokens->ids.begin() + begin, tokens->ids.begin() + end},
                               {tokens->labels.begin() + begin, tokens->labels.begin() + end}));
    begin = end;
  }
  return documents;
}

Example ExampleBuilder::build_response(const std::string& prompt, const std::string& response, ThreadPool* pool) const {
  const Encoded prompt_ids = encode_document(prompt, pool);
  Encoded both = encode_document(prompt + response, pool);
  const std::size_t begin = prompt_ids.ids.size();
  if (both.ids.size() < begin || !std::equal(prompt_ids.ids.begin(), prompt_ids.ids.end(), both.ids.begin())) {
    const std::vector<std::int32_t> response_ids = encode(response, false, pool);
    both = prompt_ids;
    both.ids.insert(both.ids.end(), response_ids.begin(), response_ids.end());
  }
  return finish_text(std::move(both), response, begin);
}

// White space may follow it, as in a conversation that was rendered before: the text without it is asked then.
bool ExampleBuilder::ends_with_end_token(std::span<const std::int32_t> ids, std::string_view text) const {
  if (ids.empty()) return false;
  if (ids.back() == *end_token_) return true;
  const std::size_t end = text.find_last_not_of(" \t\r\n") + 1;
  if (end == 0 || end == text.size()) return false;
  constexpr std::size_t most_token_bytes = 256;
  const std::size_t begin = end > most_token_bytes ? end - most_token_bytes : 0;
  const std::vector<std::int32_t> tail = encoder_.encode(text.substr(begin, end - begin), false);
  return !tail.empty() && tail.back() == *end_token_;
}

Example ExampleBuilder::finish_text(Encoded encoded, std::string_view text, std::size_t response_begin) const {
  std::vector<std::int32_t>& ids = encoded.ids;
  const std::int32_t special = count_special(ids) + (encoded.began ? static_cast<std::int32_t>(prefix_) : 0);
  // What the prompt ends with is not trained.
  const std::size_t own = std::max(response_begin, prefix_);
  const bool ended = ids.size() > own && ends_with_end_token(std::span(ids).subspan(own), text);
  if (!ended) ids.push_back(*end_token_);
  require_in_vocabulary(ids);
  std::vector<std::int32_t> labels = ids;
  std::fill_n(labels.begin(), options_.train_on_prompt ? 0 : response_begin, kIgnored);
  Example example = finish(std::move(ids), std::move(labels));
  example.special = special;
  example.begins_already = encoded.began;
  example.ends_already = ended;
  return example;
}

Example ExampleBuilder::build_chat(const RenderedChat& chat) const {
  if (!chat.error.empty()) fail("{}", chat.error);
  // The first and the last byte of each trained piece.
  std::vector<std::size_t> places, tokens;
  std::size_t end = 0;
  for (std::size_t i = 0; i < chat.pieces.size(); ++i) {
    const std::size_t begin = end;
    end += chat.pieces[i].size();
    if (i % 2 == 1 && begin < end) places.insert(places.end(), {begin, end - 1});
  }
  std::vector<std::int32_t> ids = encoder_.encode_with_places(chat.text(), places, tokens);
  if (ids.empty()) fail("the chat template renders it as an empty text");
  require_in_vocabulary(ids);
  std::vector<std::int32_t> labels(ids.size(), kIgnored);
  for (std::size_t i = 0; i < tokens.size(); i += 2)
    for (std::size_t token = tokens[i]; token <= tokens[i + 1]; ++token) labels[token] = ids[token];
  bool ends_twice = false;
  for (std::size_t i = 1; i < ids.size(); ++i)
    ends_twice =
        ends_twice || (labels[i] != kIgnored && labels[i] == labels[i - 1] && encoder_.ends_generation(ids[i]));
  Example example = finish(std::move(ids), std::move(labels));
  example.ends_twice = ends_twice;
  return example;
}

void ExampleBuilder::require_in_vocabulary(const std::vector<std::int32_t>& ids) const {
  for (const std::int32_t id : ids)
    if (id < 0 || id >= vocabulary_size_)
      fail("the tokenizer gives token {}, the model's vocabulary ends at {}; they do not belong together", id,
           vocabulary_size_ - 1);
}

std::int32_t ExampleBuilder::count_special(const std::vector<std::int32_t>& ids) const {
  const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(std::min(prefix_, ids.size()));
  return static_cast<std::int32_t>(
      std::count_if(begin, ids.end(), [this](std::int32_t id) { return encoder_.is_special(id); }));
}

Example ExampleBuilder::finish(std::vector<std::int32_t> ids, std::vector<std::int32_t> labels) const {
  SO_CHECK(ids.size() == labels.size() && !ids.empty(), "{} ids, {} labels", ids.size(), labels.size());
  Example example;
  const auto max_length = static_cast<std::size_t>(options_.max_length);
  example.truncated = ids.size() > max_length;
  if (example.truncated) {
    ids.resize(max_length);
    labels.resize(max_length);
  }
  labels.erase(labels.begin());
  labels.push_back(kIgnored);
  example.trained = static_cast<std::int32_t>(labels.size()) -
                    static_cast<std::int32_t>(std::count(labels.begin(), labels.end(), kIgnored));
  example.ids = std::move(ids);
  example.targets = std::move(labels);
  return example;
}

}  // namespace so
