#include "train/model_encoder.h"

#include "base/error.h"

namespace so {

ModelEncoder::ModelEncoder(const std::filesystem::path& directory, std::int64_t model_vocabulary)
    : directory_(directory), vocabulary_(static_cast<std::int32_t>(model_vocabulary)) {
  if (!std::filesystem::exists(directory / "tokenizer.json")) return;
  tokenizer_ = Tokenizer::load(directory);
  if (tokenizer_->vocab_size() > model_vocabulary)
    fail(
        "{}: token ids reach {}, but the model's embedding has {} rows (vocab_size in config.json); tokenizer and "
        "model do not "
        "belong together",
        (directory / "tokenizer.json").string(), tokenizer_->vocab_size() - 1, model_vocabulary);
}

const Tokenizer& ModelEncoder::tokenizer() const {
  if (!tokenizer_)
    fail(
        "{}: there is no tokenizer.json, which text needs; copy it from the model it belongs to, or give records of "
        "{{\"input_ids\", \"labels\"}}",
        directory_.string());
  return *tokenizer_;
}

std::vector<std::int32_t> ModelEncoder::encode(std::string_view text, bool add_special_tokens) const {
  return tokenizer().encode(text, add_special_tokens);
}

std::optional<std::int32_t> ModelEncoder::end_token() const { return tokenizer_ ? tokenizer_->eos_id() : std::nullopt; }

std::string ModelEncoder::fingerprint() const {
  return tokenizer_ ? fmt::format("{:016x}", tokenizer_->fingerprint()) : "none";
}

}  // namespace so
