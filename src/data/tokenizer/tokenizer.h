// BPE tokenizers as Hugging Face model directories ship them (tokenizer.json).
//
// Reference: the `tokenizers` library on the same tokenizer.json, id for id. It reads BPE on bytes (Llama 3, Qwen 2/3,
// Phi-4, GPT-OSS, Seed-OSS and their like) and on characters with byte fallback, as converted from SentencePiece
// (Llama 2, Mistral, Mixtral, Phi-3, Gemma and their like), and refuses by name whatever else in the file would change
// ids. It does not read Unigram, WordPiece, tokenizer.model alone or remote code.
//
// Differences from `transformers` on top of that library, where the two could disagree:
//  - "truncation" and "padding" of tokenizer.json are ignored with a warning (transformers resets them too);
//  - decode() never applies "clean_up_tokenization_spaces".
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "data/tokenizer/special_tokens.h"
#include "data/tokenizer/token_decoder.h"

namespace so {

// Immutable after loading. A copy shares the tables of the original. Every member may be called from any number of
// threads at once; encode() keeps its scratch memory and word cache (about 2 MiB for each encode in flight) in a pool
// that lives as long as the last copy.
class Tokenizer {
 public:
  // Reads DIRECTORY/tokenizer.json and, for the bos, eos and padding tokens, tokenizer_config.json,
  // special_tokens_map.json and generation_config.json: the first of them that has the key decides (null: no such
  // token). "add_bos_token" and "add_eos_token" of tokenizer_config.json have no say beside a tokenizer.json, as in
  // transformers 5: its post-processor decides. "add_prefix_space" that transformers would heed and that tokenizer.json
  // contradicts is refused. Throws Error naming file and key.
  static Tokenizer load(const std::filesystem::path& model_directory);

  // From the text of a tokenizer.json alone; there are then no bos, eos and padding ids. `name` stands for the file in
  // error messages.
  static Tokenizer parse(std::string_view tokenizer_json, const std::string& name);

  // The ids of `text`. Invalid UTF-8 is read as Python's bytes.decode("utf-8", "replace") does: each maximal invalid
  // sequence is one U+FFFD. Added tokens, special ones included, are recognised inside the text.
  // `add_special_tokens`: also what the post-processor adds around a single sequence (e.g. Llama 3's bos).
  // `special`: of those that stand in the text itself. `pool`: its threads share out a long text; the ids are the same.
  // With one this must not be called from inside a job of the pool.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens,
                                   SpecialTokens special = SpecialTokens::parsed, ThreadPool* pool = nullptr) const;

  // encode(text, false); and for each byte of the text at `places`, which ascend, the index of the token that holds it,
  // as the library's char_to_token gives it. Where the text is changed before it is split (NFC), that is where the text
  // up to there alone would end.
  std::vector<std::int32_t> encode_with_places(std::string_view text, std::span<const std::size_t> places,
                                               std::vector<std::size_t>& tokens) const;

  // An upper bound on encode(text, true).size() for valid UTF-8, and for the text with JSON's escapes replaced. It
  // looks at each byte once.
  std::uint64_t most_tokens(std::string_view text) const;

  // The text of `ids`, always valid UTF-8 (bytes that form none become U+FFFD, as above). Ids without a token, e.g.
  // those that pad a model's embedding, have no text. `skip_special_tokens`: leave out the tokens marked special;
  // as in the library, those stay that are marked normalized and that a normalizer changes.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const;

  std::int32_t vocab_size() const;  // highest id + 1, added tokens included; there may be unused ids below
  std::optional<std::int32_t> bos_id() const;
  std::optional<std::int32_t> eos_id() const;
  std::optional<std::int32_t> pad_id() const;
  // Whether generation stops at this id: the eos token, and each of the "eos_token_id" that generation_config.json, or
  // config.json where that says nothing, lists.
  bool ends_generation(std::int32_t id) const;
  // "split_special_tokens" of tokenizer_config.json: special tokens inside texts are always ordinary text.
  bool splits_special_tokens() const;
  // The same tokenizer, of which generation stops at this id too.
  Tokenizer ending_also_at(std::int32_t id) const;

  // A token's spelling is that of tokenizer.json: "Ġthe" for the bytes " the". id_to_token gives "" for an unused id.
  std::optional<std::int32_t> token_to_id(std::string_view token) const;
  std::string id_to_token(std::int32_t id) const;
  bool is_special(std::int32_t id) const;

  // Changes with tokenizer.json and with the bos, eos and padding ids that the other files give: two tokenizers with
  // one fingerprint give the same ids. For invalidating token caches; stable across machines.
  std::uint64_t fingerprint() const;

 private:
  friend class StreamDecoder;
  struct State;
  explicit Tokenizer(std::shared_ptr<const State> state);

  // A part of a text that is encoded by itself.
  struct Part {
    std::size_t begin, end;  // bytes
    std::size_t first_token;
    bool added;  // one added token
  };
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens, SpecialTokens special,
                                   std::vector<Part>* parts, ThreadPool* pool) const;
  void append_surface(std::int32_t id, std::string& text) const;
  std::shared_ptr<const State> state_;
  std::optional<std::int32_t> also_ends_;
};

// Decodes ids as they are generated. What the calls return, put together, equals Tokenizer::decode of all ids; no call
// returns a part of a UTF-8 character. One thread at a time.
class StreamDecoder {
 public:
  // `prompt`: the ids that the others follow. Its own text is not returned, but the other ids' text is what follows it:
  // a model on characters would otherwise lose the space that its text begins with.
  StreamDecoder(Tokenizer tokenizer, bool skip_special_tokens, std::span<const std::int32_t> prompt = {});

  // The text that is certain after this id, often empty within a character. With byte fallback a run of bytes, one
  // character or several, is certain when it has ended.
  std::string push(std::int32_t id);
  // Returns the rest: U+FFFD for an unfinished character. The next push begins a new text, without a prompt.
  std::string finish();

 private:
  friend class Tokenizer;
  void append(std::int32_t id, std::string& text);
  void end_run(std::string& text);

  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  std::string pending_;        // of a model on bytes: bytes that may still become a character
  TokenDecoder::State state_;  // of a model on characters
};

}  // namespace so
