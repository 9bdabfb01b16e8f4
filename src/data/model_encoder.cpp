#include "data/model_encoder.h"

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"

namespace so {

ModelEncoder::ModelEncoder(const std::filesystem::path& directory, std::int64_t model_vocabulary, SpecialTokens special)
    : directory_(directory), vocabulary_(static_cast<std::int32_t>(model_vocabulary)), special_(special) {
  if (!path_exists(directory / "tokenizer.json")) return;
  try {
    tokenizer_ = Tokenizer::load(directory);
  } catch (const Error& error) {
    problem_ = error.what();  // of no account to data that is already tokenised
    return;
  }
  if (tokenizer_->vocab_size() > model_vocabulary)
    fail(
        "{}: token ids reach {}, but the model's embedding has {} rows "
        "(vocab_size in config.json); tokenizer and model do not belong together",
        (directory / "tokenizer.json").string(), tokenizer_->vocab_size() - 1, model_vocabulary);
}

const Tokenizer& ModelEncoder::tokenizer() const {
  if (!problem_.empty())
    fail("{}; text needs a tokenizer that can be read, records of {{\"input_ids\", \"labels\"}} need none", problem_);
  if (!tokenizer_ && path_exists(directory_ / "tokenizer.model"))
    fail(
        "{}: there is only a SentencePiece tokenizer (tokenizer.model), which is not read; tokenise with transformers "
        "and give records of {{\"input_ids\", \"labels\"}}",
        printable_path(directory_));
  if (!tokenizer_)
    fail(
        "{}: there is no tokenizer.json, which text needs; copy it from the model it belongs to, or give records of "
        "{{\"input_ids\", \"labels\"}}",
        directory_.string());
  return *tokenizer_;
}

std::vector<std::int32_t> ModelEncoder::encode(std::string_view text, bool add_special_tokens) const {
  return tokenizer().encode(text, add_special_tokens, special_);
}

std::vector<std::int32_t> ModelEncoder::encode_shared(std::string_view text, bool add_special_tokens,
                                                      ThreadPool& pool) const {
  return tokenizer().encode(text, add_special_tokens, special_, &pool);
}

std::vector<std::int32_t> ModelEncoder::encode_with_places(std::string_view text, std::span<const std::size_t> places,
                                                           std::vector<std::size_t>& tokens) const {
  return tokenizer().encode_with_places(text, places, tokens);
}

ChatTemplate ModelEncoder::chat_template() const {
  const Tokenizer& own = tokenizer();
  std::optional<ChatTemplate> found = find_chat_template(directory_);
  if (!found)
    fail(
        "{}: the model has no chat template (chat_template.jinja, or \"chat_template\" in tokenizer_config.json), which "
        "conversations need; copy chat_template.jinja from the model's variant for chat, or give records of "
        "{{\"instruction\", \"output\"}} or {{\"prompt\", \"completion\"}}",
        printable_path(directory_));
  if (own.splits_special_tokens())
    fail(
        "{}: \"split_special_tokens\" is true, and a chat template spells its tokens in the text, so conversations need "
        "them parsed; remove the key",
        printable_path(directory_ / "tokenizer_config.json"));
  if (special_ == SpecialTokens::as_text)
    fail(
        "--parse_special_tokens false: a chat template spells its tokens in the text, so conversations need them "
        "parsed; leave the option out");
  for (std::int32_t id = 0; id < own.vocab_size(); ++id) {
    if (own.is_special(id)) found->special_tokens.push_back(own.id_to_token(id));
    if (own.ends_generation(id)) found->stop_tokens.push_back(own.id_to_token(id));
  }
  return *found;
}

std::optional<std::int32_t> ModelEncoder::end_token() const { return tokenizer_ ? tokenizer_->eos_id() : std::nullopt; }

std::string ModelEncoder::fingerprint() const {
  if (!tokenizer_) return "none";
  return fmt::format("{:016x}{}", tokenizer_->fingerprint(),
                     special_ == SpecialTokens::as_text ? ", special tokens as text" : "");
}

}  // namespace so
