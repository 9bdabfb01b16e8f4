#include "data/model_encoder.h"

#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/json_text.h"
#include "base/json_tree.h"

namespace so {

namespace {

constexpr std::uint64_t max_generation_config_bytes = 64'000'000;

// The text of generation_config.json with one more token at which generation stops.
std::string with_end(const std::filesystem::path& directory, const Tokenizer& tokenizer, std::int32_t end) {
  const std::filesystem::path file = directory / "generation_config.json";
  const std::string text = path_exists(file) ? read_text_file(file, max_generation_config_bytes) : "{}";
  const HeldNumbers held(text);
  auto config = json_tree<nlohmann::ordered_json>(held.text());
  if (!config.is_object()) fail("{} is no JSON object; mend it or remove it", printable_path(file));
  config["eos_token_id"] = nlohmann::ordered_json::array();
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.ends_generation(id)) config["eos_token_id"].push_back(id);
  config["eos_token_id"].push_back(end);
  return held.restored(config.dump(2)) + "\n";
}

}  // namespace

ModelEncoder::ModelEncoder(const std::filesystem::path& directory, std::int64_t model_vocabulary, SpecialTokens special,
                           const std::optional<std::string>& chat_template)
    : directory_(directory), vocabulary_(static_cast<std::int32_t>(model_vocabulary)), special_(special) {
  load_tokenizer(model_vocabulary);
  if (chat_template) use_template(*chat_template);
}

void ModelEncoder::load_tokenizer(std::int64_t model_vocabulary) {
  if (!path_exists(directory_ / "tokenizer.json")) return;
  try {
    tokenizer_ = Tokenizer::load(directory_);
  } catch (const Error& error) {
    problem_ = error.what();  // of no account to data that is already tokenised
    return;
  }
  if (tokenizer_->vocab_size() > model_vocabulary)
    fail(
        "{}: token ids reach {}, but the model's embedding has {} rows "
        "(vocab_size in config.json); tokenizer and model do not belong together",
        (directory_ / "tokenizer.json").string(), tokenizer_->vocab_size() - 1, model_vocabulary);
}

void ModelEncoder::use_template(const std::string& value) {
  const Tokenizer& own = tokenizer();
  GivenTemplate given = given_chat_template(value, directory_);
  const std::vector<std::int32_t> first = own.encode("", true);
  if (given.is_own && own.bos_id() && !first.empty() && first.front() == own.bos_id())
    given.chat.text.insert(0, "{{- bos_token }}\n");
  std::optional<std::int32_t> end;
  for (const std::string& token : given.tokens) {
    end = own.token_to_id(token);
    if (!end || !own.is_special(*end))
      fail("--chat_template {}: {} has no special token {}; give a template of the tokens that it has", value,
           printable_path(directory_ / "tokenizer.json"), token);
  }
  replaced_files_["chat_template.jinja"] = given.chat.text;
  given_template_ = std::move(given.chat);
  if (!end || own.ends_generation(*end)) return;
  replaced_files_["generation_config.json"] = with_end(directory_, own, *end);
  tokenizer_ = own.ending_also_at(*end);
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
  std::optional<ChatTemplate> found = given_template_ ? given_template_ : find_chat_template(directory_);
  if (!found)
    fail(
        "{}: the model has no chat template (chat_template.jinja, or \"chat_template\" in tokenizer_config.json), which "
        "conversations need; give --chat_template: the chat_template.jinja of its variant for chat, alpaca for a model "
        "of Alpaca records, or chatml for one that is to learn a form",
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
