#include "data/example.h"

#include <algorithm>

#include "base/error.h"

namespace so {

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

std::vector<std::int32_t> ExampleBuilder::encode_document(std::string_view text) const {
  std::vector<std::int32_t> ids = encoder_.encode(text, true);
  SO_CHECK(ids.size() >= suffix_, "{} tokens, of which the template appends {}", ids.size(), suffix_);
  ids.resize(ids.size() - suffix_);
  return ids;
}

Example ExampleBuilder::build(const Record& record) const {
  if (const auto* tokens = std::get_if<TokenRecord>(&record)) return finish(tokens->ids, tokens->labels);

  if (!encoder_.can_encode()) (void)encoder_.encode({}, false);  // throws, and knows why
  if (!end_token_)
    fail(
        "the tokenizer has no end token, so the model could not learn to stop; name one as \"eos_token\" in "
        "tokenizer_config.json");
  std::vector<std::int32_t> ids;
  std::size_t trained_from = 0;
  if (const auto* text = std::get_if<TextRecord>(&record)) {
    ids = encode_document(text->text);
  } else {
    const auto& alpaca = std::get<AlpacaRecord>(record);
    const std::string prompt = alpaca_prompt(alpaca);
    const std::vector<std::int32_t> prompt_ids = encode_document(prompt);
    ids = encode_document(prompt + alpaca.output);
    if (ids.size() < prompt_ids.size() || !std::equal(prompt_ids.begin(), prompt_ids.end(), ids.begin())) {
      const std::vector<std::int32_t> output_ids = encoder_.encode(alpaca.output, false);
      ids = prompt_ids;
      ids.insert(ids.end(), output_ids.begin(), output_ids.end());
    }
    if (!options_.train_on_prompt) trained_from = prompt_ids.size();
  }
  const std::int32_t special = count_special(ids);
  ids.push_back(*end_token_);
  for (const std::int32_t id : ids)
    if (id < 0 || id >= vocabulary_size_)
      fail("the tokenizer gives token {}, the model's vocabulary ends at {}; they do not belong together", id,
           vocabulary_size_ - 1);

  std::vector<std::int32_t> labels = ids;
  std::fill_n(labels.begin(), trained_from, kIgnored);
  Example example = finish(std::move(ids), std::move(labels));
  example.special = special;
  return example;
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
