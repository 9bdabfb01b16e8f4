// The tokenizer of a model directory, as the data room wants it.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "data/text_encoder.h"
#include "data/tokenizer/tokenizer.h"

namespace so {

// Translates the option --parse_special_tokens.
inline SpecialTokens special_tokens(bool parsed) { return parsed ? SpecialTokens::parsed : SpecialTokens::as_text; }

// Reads the directory's tokenizer if it has one. Data that is already tokenised needs none, and is not stopped by one
// that cannot be read; asking for text to be encoded is then an Error that says so.
class ModelEncoder final : public TextEncoder {
 public:
  // `model_vocabulary`: rows of the embedding. Throws Error if the tokenizer has ids beyond them. `special`: what
  // becomes of special tokens inside texts. `chat_template`: given instead of the directory's (--chat_template); Error
  // if it cannot be had, or the tokenizer lacks its tokens.
  ModelEncoder(const std::filesystem::path& directory, std::int64_t model_vocabulary, SpecialTokens special,
               const std::optional<std::string>& chat_template = {});

  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens) const override;
  std::vector<std::int32_t> encode_shared(std::string_view text, bool add_special_tokens,
                                          ThreadPool& pool) const override;
  std::vector<std::int32_t> encode_with_places(std::string_view text, std::span<const std::size_t> places,
                                               std::vector<std::size_t>& tokens) const override;
  bool can_encode() const override { return tokenizer_.has_value(); }
  std::uint64_t most_tokens(std::string_view text) const override { return tokenizer().most_tokens(text); }
  bool is_special(std::int32_t id) const override { return tokenizer_ && tokenizer_->is_special(id); }
  std::optional<std::int32_t> end_token() const override;
  bool ends_generation(std::int32_t id) const override { return tokenizer_ && tokenizer_->ends_generation(id); }
  ChatTemplate chat_template() const override;
  std::int32_t vocabulary_size() const override { return vocabulary_; }
  std::string fingerprint() const override;

  const Tokenizer& tokenizer() const;  // Error when there is none

  // Where a chat template is given: the files, by name, that a model which is trained with it has instead of the
  // directory's. None otherwise.
  const std::map<std::string, std::string>& replaced_files() const { return replaced_files_; }

 private:
  void load_tokenizer(std::int64_t model_vocabulary);
  void use_template(const std::string& value);

  std::filesystem::path directory_;
  std::int32_t vocabulary_;
  SpecialTokens special_;
  std::optional<Tokenizer> tokenizer_;
  std::string problem_;  // why the tokenizer that is there cannot be read
  std::optional<ChatTemplate> given_template_;
  std::map<std::string, std::string> replaced_files_;
};

}  // namespace so
