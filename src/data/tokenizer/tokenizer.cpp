#include "data/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
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
#include "data/tokenizer/character_bpe.h"
#include "data/tokenizer/normalize_steps.h"
#include "data/tokenizer/piece_batches.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/special_ids.h"
#include "data/tokenizer/token_bound.h"
#include "data/tokenizer/token_decoder.h"
#include "data/tokenizer/token_surface.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/utf8.h"
#include "data/tokenizer/vocabulary.h"
#include "data/tokenizer/word_cache.h"

namespace so {
namespace {

constexpr std::uint64_t max_tokenizer_bytes = 200'000'000;         // the largest published have 40 MB
constexpr std::size_t least_shared_text = std::size_t{256} << 10;  // bytes of which threads encode a part each

// The buffers and the cache of one encode() at a time.
struct Workspace {
  WordCache cache;
  Bpe::Scratch bpe;
  std::vector<std::int32_t> symbols;
  CharacterBpe::Scratch characters;
  Normalizer::Scratch normalizer;
  PreTokenizer::Scratch pre_tokenizer;
  std::string repaired;
  std::vector<AddedTokenMatcher::Match> given;  // added tokens in the text as given
  std::vector<AddedTokenMatcher::Match> in_normalized;
  ThreadPool* pool = nullptr;  // whose threads help with a long text
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

std::vector<AddedToken> matched_in(const std::vector<AddedToken>& all, bool normalized, const Normalizer& normalizer,
                                   const std::string& name) {
  std::vector<AddedToken> tokens;
  std::unordered_set<std::string> contents;
  Normalizer::Scratch scratch;
  for (AddedToken token : all) {
    if (token.normalized != normalized) continue;
    if (normalized) token.content = std::string(normalizer.run(token.content, scratch));
    if (token.content.empty()) fail("{}: one of added_tokens normalizes to nothing", name);
    if (!contents.insert(token.content).second) {
      fail("{}: two added_tokens normalize to \"{}\": which of them a text means is undefined", name, token.content);
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// Whether it puts a blank before a text.
bool puts_blank_first(const TokenizerSpec& spec) {
  const auto normalizes = [](const NormalizeStep& step) { return step.kind == NormalizeStep::Kind::prepend; };
  const auto splits = [](const PreTokenizeStep& step) {
    const auto* bytes = std::get_if<ByteLevelStep>(&step);
    const auto* metaspace = std::get_if<MetaspaceStep>(&step);
    return (bytes != nullptr && bytes->add_prefix_space) ||
           (metaspace != nullptr && metaspace->prepend != MetaspaceStep::Prepend::never);
  };
  return std::any_of(spec.normalizers.begin(), spec.normalizers.end(), normalizes) ||
         std::any_of(spec.pre_tokenizers.begin(), spec.pre_tokenizers.end(), splits);
}

UnknownCharacters unknown_in(const TokenizerSpec& spec) {
  return {spec.byte_fallback ? std::optional(spec.byte_ids) : std::nullopt, spec.unk, spec.fuse_unk};
}

}  // namespace

struct Tokenizer::State {
  State(TokenizerSpec spec, const std::string& name, std::uint64_t content_hash)
      : bound(token_bound_of(spec)),  // before parts of it are moved away
        blank_first(puts_blank_first(spec)),
        model(std::move(spec.model)),
        words(std::move(spec.words)),
        byte_ids(spec.byte_ids),
        ignore_merges(spec.ignore_merges),
        normalizer(std::move(spec.normalizers)),
        given_tokens(matched_in(spec.added_tokens, false, normalizer, name)),
        normalized_tokens(matched_in(spec.added_tokens, true, normalizer, name)),
        pre_tokenizer(spec.pre_tokenizers),
        decoder(std::move(spec.decoders)),
        before(std::move(spec.before)),
        after(std::move(spec.after)),
        end_id(model.end_id()),
        fingerprint(content_hash) {
    if (spec.byte_level)
      bytes.emplace(spec.merges);
    else
      characters.emplace(model, spec.merges, unknown_in(spec));
    Normalizer::Scratch scratch;
    for (const AddedToken& token : spec.added_tokens) {
      if (!model.contains(token.id)) added.add(token.id, token.content);
      if (token.special) special.insert(token.id);
      end_id = std::max(end_id, token.id + 1);
      if (!token.normalized) continue;
      const std::string_view normal = normalizer.run(token.content, scratch);
      if (normal != token.content) respelt.emplace(token.id, normal);
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

  // The library skips by spelling, and so passes over special tokens that decode to something else than their content.
  bool is_skipped(std::int32_t id) const { return special.contains(id) && !respelt.contains(id); }

  void append_word(std::string_view word, Workspace& workspace, std::vector<std::int32_t>& ids) const;
  void append_characters(std::string_view word, Workspace& workspace, std::vector<std::int32_t>& ids) const;
  void append_plain(std::string_view text, bool at_beginning, Workspace& workspace,
                    std::vector<std::int32_t>& ids) const;
  void append_shared(std::string_view text, bool at_beginning, Workspace& workspace,
                     std::vector<std::int32_t>& ids) const;
  void append_normalized(std::string_view text, bool at_beginning, SpecialTokens in_text, Workspace& workspace,
                         std::vector<std::int32_t>& ids) const;
  void append_bytes(std::int32_t id, std::string& text) const;

  TokenBound bound;
  bool blank_first;
  Vocabulary model;                        // spellings
  Vocabulary words;                        // bytes
  Vocabulary added;                        // added tokens that the model does not have
  std::array<std::int32_t, 256> byte_ids;  // of a model on bytes
  std::optional<Bpe> bytes;                // a model is on bytes
  std::optional<CharacterBpe> characters;  // or on characters
  bool ignore_merges;
  Normalizer normalizer;
  AddedTokenMatcher given_tokens;
  AddedTokenMatcher normalized_tokens;
  PreTokenizer pre_tokenizer;
  TokenDecoder decoder;  // of a model on characters
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
    workspace.symbols.clear();
    for (const char byte : word) workspace.symbols.push_back(byte_ids[static_cast<unsigned char>(byte)]);
    bytes->merge(workspace.symbols, workspace.bpe, out);
  }
  if (cached) workspace.cache.remember(word, out, first);
}

void Tokenizer::State::append_characters(std::string_view word, Workspace& workspace,
                                         std::vector<std::int32_t>& out) const {
  if (ignore_merges) {
    if (const std::int32_t whole = model.find(word); whole >= 0) {
      out.push_back(whole);
      return;
    }
  }
  characters->for_each_piece(word, [&](std::string_view piece) {
    if (const std::int32_t id = characters->single(piece); id >= 0) {
      out.push_back(id);
      return;
    }
    const bool cached = WordCache::fits(piece);
    if (cached && workspace.cache.append(piece, out)) return;
    const std::size_t first = out.size();
    characters->encode_piece(piece, workspace.characters, out);
    if (cached) workspace.cache.remember(piece, out, first);
  });
}

// Text without added tokens, normalized. `at_beginning`: nothing came before it in the text as given.
void Tokenizer::State::append_plain(std::string_view text, bool at_beginning, Workspace& workspace,
                                    std::vector<std::int32_t>& out) const {
  if (workspace.pool != nullptr && text.size() >= least_shared_text) {
    append_shared(text, at_beginning, workspace, out);
    return;
  }
  pre_tokenizer.run(text, at_beginning, workspace.pre_tokenizer, [&](std::string_view word) {
    if (characters)
      append_characters(word, workspace, out);
    else
      append_word(word, workspace, out);
  });
}

// The same of a long text: one thread cuts it, and those of the pool encode.
void Tokenizer::State::append_shared(std::string_view text, bool at_beginning, Workspace& workspace,
                                     std::vector<std::int32_t>& out) const {
  PieceBatches batches(
      *workspace.pool,
      [this](const std::vector<std::string_view>& pieces, std::vector<std::int32_t>& encoded) {
        auto own = workspaces.take();
        for (const std::string_view piece : pieces)
          characters ? append_characters(piece, *own, encoded) : append_word(piece, *own, encoded);
        workspaces.put_back(std::move(own));
      },
      out);
  // Where a word may be a token whatever the merges say, it must stay whole. Of other words of a model on characters
  // the pieces are independent, and one word may be all of the text.
  const bool in_pieces = characters && !ignore_merges;
  const auto add = [&](std::string_view piece) { batches.add(piece); };
  pre_tokenizer.run(text, at_beginning, workspace.pre_tokenizer, [&](std::string_view word) {
    if (in_pieces)
      characters->for_each_piece(word, add);
    else
      add(word);
  });
  batches.finish();
}

// Calls `token` for each match and `rest` for the text between them, with whether that is the beginning.
template <class Rest, class Token>
void between_matches(std::string_view text, const std::vector<AddedTokenMatcher::Match>& matches, Rest&& rest,
                     Token&& token) {
  std::size_t at = 0;
  for (const AddedTokenMatcher::Match& match : matches) {
    if (match.begin > at) rest(text.substr(at, match.begin - at), at == 0);
    token(match);
    at = match.end;
  }
  if (at < text.size()) rest(text.substr(at), at == 0);
}

// Text without the added tokens that are looked for as given, not yet normalized.
void Tokenizer::State::append_normalized(std::string_view text, bool at_beginning, SpecialTokens in_text,
                                         Workspace& workspace, std::vector<std::int32_t>& out) const {
  const std::string_view normal = normalizer.run(text, workspace.normalizer);
  if (normal.empty()) return;
  at_beginning = at_beginning && !workspace.normalizer.beginning_removed;
  if (normalized_tokens.empty()) {
    append_plain(normal, at_beginning, workspace, out);
    return;
  }
  normalized_tokens.find_all(normal, in_text, workspace.in_normalized);
  between_matches(
      normal, workspace.in_normalized,
      [&](std::string_view rest, bool first) { append_plain(rest, at_beginning && first, workspace, out); },
      [&](const AddedTokenMatcher::Match& match) { out.push_back(match.id); });
}

// A token that spells bytes is those bytes; any other is its own text.
void Tokenizer::State::append_bytes(std::int32_t id, std::string& text) const {
  if (words.contains(id) && !respelt.contains(id)) {
    text += words.string(id);
    return;
  }
  const std::string_view token = spelling(id);
  if (const auto spelt = bytes_of_spelling(token)) {
    text += *spelt;
  } else {
    text += token;
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
      [&](std::int32_t id) { return state->contains(id); }, state->bytes.has_value());
  const SpecialIds& ids = state->ids;
  if (ids.add_prefix_space && *ids.add_prefix_space != state->blank_first)
    fail(
        "{}: \"add_prefix_space\" is {}, and tokenizer.json {} a blank before a text, so that transformers would encode "
        "it otherwise; set the key to {}, or load the tokenizer with transformers and save it again",
        printable_path(model_directory / "tokenizer_config.json"), *ids.add_prefix_space,
        state->blank_first ? "puts" : "does not put", state->blank_first);
  std::string decisions;
  for (const auto& id : {ids.bos, ids.eos, ids.pad}) decisions += fmt::format("{} ", id.value_or(-1));
  if (ids.split_special_tokens) decisions += "split";
  state->fingerprint = hash_text(decisions, state->fingerprint);
  return Tokenizer(std::move(state));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens, SpecialTokens special,
                                            ThreadPool* pool) const {
  return encode(text, add_special_tokens, special, nullptr, pool);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens, SpecialTokens special,
                                            std::vector<Part>* parts, ThreadPool* pool) const {
  if (text.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    fail("a text of {} bytes is too long to be encoded at once: split it, the limit is 2 GiB", text.size());
  }
  const State& state = *state_;
  if (state.ids.split_special_tokens) special = SpecialTokens::as_text;
  auto workspace = state.workspaces.take();
  workspace->pool = pool;
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
      text, workspace->given,
      [&](std::string_view rest, bool first) {
        const auto begin = static_cast<std::size_t>(rest.data() - text.data());
        if (parts != nullptr) parts->push_back({begin, begin + rest.size(), ids.size(), false});
        state.append_normalized(rest, first, special, *workspace, ids);
      },
      [&](const AddedTokenMatcher::Match& match) {
        if (parts != nullptr) parts->push_back({match.begin, match.end, ids.size(), true});
        ids.push_back(match.id);
      });
  if (add_special_tokens) ids.insert(ids.end(), state.after.begin(), state.after.end());
  workspace->pool = nullptr;
  state.workspaces.put_back(std::move(workspace));
  return ids;
}

void Tokenizer::append_surface(std::int32_t id, std::string& text) const {
  if (!state_->characters) return state_->append_bytes(id, text);
  append_character_surface(state_->spelling(id), text);
}

std::uint64_t Tokenizer::most_tokens(std::string_view text) const {
  return state_->bound.of(text) + state_->before.size() + state_->after.size();
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  if (state_->characters) {
    StreamDecoder decoder(*this, skip_special_tokens);
    std::string text;
    for (const std::int32_t id : ids) decoder.append(id, text);
    decoder.end_run(text);
    return text;
  }
  std::string bytes;
  for (const std::int32_t id : ids) {
    if (!(skip_special_tokens && state_->is_skipped(id))) state_->append_bytes(id, bytes);
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
  return id == also_ends_ || std::find(ends.begin(), ends.end(), id) != ends.end();
}
Tokenizer Tokenizer::ending_also_at(std::int32_t id) const {
  Tokenizer copy = *this;
  copy.also_ends_ = id;
  return copy;
}
bool Tokenizer::splits_special_tokens() const { return state_->ids.split_special_tokens; }
bool Tokenizer::is_special(std::int32_t id) const { return state_->special.contains(id); }
std::uint64_t Tokenizer::fingerprint() const { return state_->fingerprint; }

std::optional<std::int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const std::int32_t id = state_->find(token);
  return id >= 0 ? std::optional(id) : std::nullopt;
}

std::string Tokenizer::id_to_token(std::int32_t id) const { return std::string(state_->spelling(id)); }

StreamDecoder::StreamDecoder(Tokenizer tokenizer, bool skip_special_tokens, std::span<const std::int32_t> prompt)
    : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {
  std::string text;
  for (const std::int32_t id : prompt) append(id, text);
  end_run(text);
}

void StreamDecoder::append(std::int32_t id, std::string& text) {
  const Tokenizer::State& state = *tokenizer_.state_;
  if (skip_special_tokens_ && state.is_skipped(id)) return;
  if (state.characters) {
    if (state.contains(id)) state.decoder.push(state.spelling(id), state_, text);
    return;
  }
  state.append_bytes(id, pending_);
  const std::size_t certain = pending_.size() - unfinished_utf8_tail(pending_);
  append_repaired_utf8(text, std::string_view(pending_).substr(0, certain));
  pending_.erase(0, certain);
}

void StreamDecoder::end_run(std::string& text) {
  tokenizer_.state_->decoder.settle(state_, text);
  append_repaired_utf8(text, pending_);
  pending_.clear();
}

std::string StreamDecoder::push(std::int32_t id) {
  std::string text;
  append(id, text);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  end_run(text);
  state_ = {};
  return text;
}

}  // namespace so
