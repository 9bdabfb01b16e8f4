// The interface of a tokenizer that the data room needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "data/chat/chat_template.h"

namespace so {

// All methods are const and must be callable from several threads at once.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;

  // Token ids of UTF-8 text. With add_special_tokens also what the tokenizer's template puts around a document (a
  // beginning-of-sequence token, say); without, the text's tokens alone.
  virtual std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens) const = 0;

  // encode(), for which the threads of `pool` share out a long text. Not from inside a job of the pool.
  virtual std::vector<std::int32_t> encode_shared(std::string_view text, bool add_special_tokens, ThreadPool&) const {
    return encode(text, add_special_tokens);
  }

  // encode(text, false); and for each byte of the text at `places`, which ascend, the index of the token that holds it.
  // The default is for encoders that make one token of each byte.
  virtual std::vector<std::int32_t> encode_with_places(std::string_view text, std::span<const std::size_t> places,
                                                       std::vector<std::size_t>& tokens) const {
    std::vector<std::int32_t> ids = encode(text, false);
    SO_CHECK(ids.size() == text.size(), "an encoder that merges bytes must find places itself");
    tokens.assign(places.begin(), places.end());
    return ids;
  }

  // False: there is no tokenizer, encode() throws Error saying so, and only records of token ids can be used.
  virtual bool can_encode() const { return true; }

  // Whether an id is one of the tokenizer's special tokens, to count those that stand in texts.
  virtual bool is_special(std::int32_t) const { return false; }

  // Whether generation stops at this token.
  virtual bool ends_generation(std::int32_t id) const { return end_token() == id; }

  // The template for conversations. Throws Error if there is none.
  virtual ChatTemplate chat_template() const { fail("there is no chat template"); }

  // An upper bound on the tokens that encode(text, true) gives for valid UTF-8, and for the text with JSON's escapes
  // replaced, found without encoding. The default is for encoders that make at most one token of a byte and put at
  // most one before and one behind.
  virtual std::uint64_t most_tokens(std::string_view text) const { return text.size() + 2; }

  // The token that ends a document; absent if the tokenizer has none.
  virtual std::optional<std::int32_t> end_token() const = 0;

  // Ids are in [0, vocabulary_size()): the rows of the model's embedding where there is a model.
  virtual std::int32_t vocabulary_size() const = 0;

  // Equal for two encoders exactly if they encode every text alike. Part of the token cache's key.
  virtual std::string fingerprint() const = 0;
};

}  // namespace so
