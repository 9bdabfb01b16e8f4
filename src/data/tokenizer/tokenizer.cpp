#include "data/tokenizer/tokenizer.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/byte_level.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/special_ids.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/utf8.h"
#include "data/tokenizer/vocabulary.h"
#include "data/tokenizer/word_cache.h"

namespace so {
namespace {

constexpr std::uint64_t max_tokenizer_bytes = 200'000'000;  // the largest published have 40 MB

// What one encode() works with.
struct Workspace {
  WordCache cache;
  Bpe::Scratch bpe;
  PreTokenizer::Scratch pre_tokenizer;
  std::string repaired;
  std::string normalized;
  std::vector<AddedTokenMatcher::Match> given;  // added tokens in the text as given
  std::vector<AddedTokenMatcher::Match> in_normalized;
};

// Workspaces not in use at the moment.
class WorkspacePool {
 public:
  std::unique_ptr<Workspace> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Workspace>();
    auto workspace = std::move(idle_.back());
    idle_.pop_back();
    return workspace;
  }
  void put_back(std::unique_ptr<Workspace> workspace) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(workspace));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;
};

std::vector<AddedToken> matched_in(const TokenizerSpec& spec, bool normalized, const std::string& name) {
  std::vector<AddedToken> tokens;
  std::unordered_set<std::string> contents;
  std::string storage;
  for (AddedToken token : spec.added_tokens) {
    if (token.normalized != normalized) continue;
    if (normalized && spec.nfc) token.content = std::string(to_nfc(token.content, storage));
    if (!contents.insert(token.content).second) {
      fail("{}: two added_tokens normalize to \"{}\": which of them a text means is undefined", name, token.content);
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

struct Tokenizer::State {
  State(TokenizerSpec spec, const std::string& name, std::uint64_t content_hash)
      : model(std::move(spec.model)),
        words(std::move(spec.words)),
        bpe(spec.byte_ids, spec.merges),
        ignore_merges(spec.ignore_merges),
        nfc(spec.nfc),
        given_tokens(matched_in(spec, false, name)),
        normalized_tokens(matched_in(spec, true, name)),
        pre_tokenizer(std::move(spec.splits), spec.add_prefix_space, spec.use_regex, name),
        before(std::move(spec.before)),
        after(std::move(spec.after)),
        end_id(model.end_id()),
        fingerprint(content_hash) {
    for (const AddedToken& token : spec.added_tokens) {
      if (!model.contains(token.id)) added.add(token.id, token.content);
      if (token.special) special.insert(token.id);
      std::string storage;
      if (nfc && token.normalized && to_nfc(token.content, storage) != token.content)
        respelt.emplace(token.id, storage);
      end_id = std::max(end_id, token.id + 1);
    }
  }

  static std::shared_ptr<State> read(std::string_view json, const std::string& name) {
    TokenizerSpec spec = read_tokenizer_json(json, name);
    for (const std::string& warning : spec.warnings) log_warning("{}", warning);
    return std::make_shared<State>(std::move(spec), name, hash_text(json));
  }

  std::int32_t find(std::string_view token) const {
    const std::int32_t id = added.find(token);
    return id >= 0 ? id : model.find(token);
  }
  bool contains(std::int32_t id) const { return model.contains(id) || added.contains(id); }
  std::string_view spelling(std::int32_t id) const {
    if (const auto found = respelt.find(id); found != respelt.end()) return found->second;
    return model.contains(id) ? model.string(id) : added.string(id);
  }

  void append_word(std::string_view word, Workspace& workspace, std::vector<std::int32_t>& ids) const;
  void append_plain(std::string_view text, Workspace& workspace, std::vector<std::int32_t>& ids) const;
  void append_normalized(std::string_view text, SpecialTokens in_text, Workspace& workspace,
                         std::vector<std::int32_t>& ids) const;
  void append_bytes(std::int32_t id, std::string& bytes) const;

  Vocabulary model;  // spellings
  Vocabulary words;  // bytes
  Vocabulary added;  // added tokens that the model does not have
  Bpe bpe;
  bool ignore_merges;
  bool nfc;
  AddedTokenMatcher given_tokens;
  AddedTokenMatcher normalized_tokens;
  PreTokenizer pre_tokenizer;
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> after;
  std::unordered_set<std::int32_t> special;
  std::unordered_map<std::int32_t, std::string> respelt;  // normalized added tokens decode to their normalized content
  std::int32_t end_id;
  SpecialIds ids;
  std::uint64_t fingerprint;
  mutable WorkspacePool workspaces;
};

void Tokenizer::State::append_word(std::string_view word, Workspace& workspace, std::vector<std::int32_t>& out) const {
  const bool cached = WordCache::fits(word);
  if (cached && workspace.cache.append(word, out)) return;
  const std::size_t first = out.size();
  const std::int32_t whole = ignore_merges ? words.find(word) : -1;
  if (whole >= 0) {
    out.push_back(whole);
  } else {
    bpe.encode_word(word, workspace.bpe, out);
  }
  if (cached) workspace.cache.remember(word, out, first);
}

// Text without added tokens, normalized.
void Tokenizer::State::append_plain(std::string_view text, Workspace& workspace, std::vector<std::int32_t>& out) const {
  pre_tokenizer.run(text, workspace.pre_tokenizer, [&](std::string_view word) { append_word(word, workspace, out); });
}

// Calls `token` for each match and `rest` for the text between them.
template <class Rest, class Token>
void between_matches(std::string_view text, const std::vector<AddedTokenMatcher::Match>& matches, Rest&& rest,
                     Token&& token) {
  std::size_t at = 0;
  for (const AddedTokenMatcher::Match& match : matches) {
    if (match.begin > at) rest(text.substr(at, match.begin - at));
    token(match.id);
    at = match.end;
  }
  if (at < text.size()) rest(text.substr(at));
}

// Text without the added tokens that are looked for as given, not yet normalized.
void Tokenizer::State::append_normalized(std::string_view text, SpecialTokens in_text, Workspace& workspace,
                                         std::vector<std::int32_t>& out) const {
  const std::string_view normal = nfc ? to_nfc(text, workspace.normalized) : text;
  if (normalized_tokens.empty()) {
    append_plain(normal, workspace, out);
    return;
  }
  normalized_tokens.find_all(normal, in_text, workspace.in_normalized);
  between_matches(
      normal, workspace.in_normalized, [&](std::string_view rest) { append_plain(rest, workspace, out); },
      [&](std::int32_t id) { out.push_back(id); });
}

// A token that spells bytes is those bytes; any other is its own text.
void Tokenizer::State::append_bytes(std::int32_t id, std::string& bytes) const {
  if (words.contains(id) && !respelt.contains(id)) {
    bytes += words.string(id);
    return;
  }
  const std::string_view text = spelling(id);
  if (const auto spelt = bytes_of_spelling(text)) {
    bytes += *spelt;
  } else {
    bytes += text;
  }
}

Tokenizer::Tokenizer(std::shared_ptr<const State> state) : state_(std::move(state)) {}

Tokenizer Tokenizer::parse(std::string_view tokenizer_json, const std::string& name) {
  return Tokenizer(State::read(tokenizer_json, name));
}

Tokenizer Tokenizer::load(const std::filesystem::path& model_directory) {
  const std::filesystem::path file = model_directory / "tokenizer.json";
  if (!path_exists(file)) {
    fail(
        "{} has no tokenizer.json; if it has another tokenizer file, convert it: "
        "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
        printable_path(model_directory));
  }
  refuse_lfs_pointer(file);
  const std::string json = read_text_file(file, max_tokenizer_bytes);
  auto state = State::read(json, printable_path(file));
  state->ids = read_special_ids(
      model_directory, [&](std::string_view token) { return state->find(token); },
      [&](std::int32_t id) { return state->contains(id); });
  const SpecialIds& ids = state->ids;
  std::string decisions;
  for (const auto& id : {ids.bos, ids.eos, ids.pad}) decisions += fmt::format("{} ", id.value_or(-1));
  state->fingerprint = hash_text(decisions, state->fingerprint);
  return Tokenizer(std::move(state));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens,
                                            SpecialTokens special) const {
  if (text.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    fail("a text of {} bytes is too long to be encoded at once: split it, the limit is 2 GiB", text.size());
  }
  const State& state = *state_;
  auto workspace = state.workspaces.take();
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  if (add_special_tokens) ids = state.before;
  if (!is_valid_utf8(text)) {
    workspace->repaired.clear();
    append_repaired_utf8(workspace->repaired, text);
    text = workspace->repaired;
  }
  state.given_tokens.find_all(text, special, workspace->given);
  between_matches(
      text, workspace->given, [&](std::string_view rest) { state.append_normalized(rest, special, *workspace, ids); },
      [&](std::int32_t id) { ids.push_back(id); });
  if (add_special_tokens) ids.insert(ids.end(), state.after.begin(), state.after.end());
  state.workspaces.put_back(std::move(workspace));
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    if (!(skip_special_tokens && is_special(id))) state_->append_bytes(id, bytes);
  }
  if (is_valid_utf8(bytes)) return bytes;
  std::string text;
  append_repaired_utf8(text, bytes);
  return text;
}

std::int32_t Tokenizer::vocab_size() const { return state_->end_id; }
std::optional<std::int32_t> Tokenizer::bos_id() const { return state_->ids.bos; }
std::optional<std::int32_t> Tokenizer::eos_id() const { return state_->ids.eos; }
std::optional<std::int32_t> Tokenizer::pad_id() const { return state_->ids.pad; }
bool Tokenizer::ends_generation(std::int32_t id) const {
  const std::vector<std::int32_t>& ends = state_->ids.ends;
  return std::find(ends.begin(), ends.end(), id) != ends.end();
}
bool Tokenizer::is_special(std::int32_t id) const { return state_->special.contains(id); }
std::uint64_t Tokenizer::fingerprint() const { return state_->fingerprint; }

std::optional<std::int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const std::int32_t id = state_->find(token);
  return id >= 0 ? std::optional(id) : std::nullopt;
}

std::string Tokenizer::id_to_token(std::int32_t id) const { return std::string(state_->spelling(id)); }

StreamDecoder::StreamDecoder(Tokenizer tokenizer, bool skip_special_tokens)
    : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}

std::string StreamDecoder::push(std::int32_t id) {
  if (skip_special_tokens_ && tokenizer_.is_special(id)) return {};
  tokenizer_.state_->append_bytes(id, pending_);
  const std::size_t certain = pending_.size() - unfinished_utf8_tail(pending_);
  std::string text;
  append_repaired_utf8(text, std::string_view(pending_).substr(0, certain));
  pending_.erase(0, certain);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  append_repaired_utf8(text, pending_);
  pending_.clear();
  return text;
}

}  // namespace so
