// Finding added tokens ("<|im_end|>") inside a text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/special_tokens.h"

namespace so {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character (\w) touches it
  bool lstrip = false;       // takes the white space to its left along
  bool rstrip = false;       // and to its right
  bool normalized = false;   // looked for in the normalized text, else in the text as given
  bool special = false;
};

// Immutable.
class AddedTokenMatcher {
 public:
  struct Match {
    std::size_t begin;  // with the white space that it takes along
    std::size_t end;
    std::int32_t id;
  };

  // `tokens`: contents must be non-empty, valid UTF-8 and distinct.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  // All matches in `text` (valid UTF-8) from left to right: the leftmost, of those the longest, then on behind it. As
  // text, special ones are passed over, with all that they spell, as the tokenizers library does.
  void find_all(std::string_view text, SpecialTokens special, std::vector<Match>& matches) const;

 private:
  static constexpr std::int32_t none = -1;
  struct Found {
    std::size_t length;  // 0: nothing
    std::int32_t token;
  };
  Found longest_at(std::string_view text, std::size_t at) const;
  std::int32_t child(std::int32_t node, unsigned char byte) const;

  std::vector<AddedToken> tokens_;
  std::array<std::int32_t, 256> first_{};                 // first byte -> node of the trie
  std::unordered_map<std::uint64_t, std::int32_t> next_;  // node << 8 | byte -> node
  std::vector<std::int32_t> token_at_;                    // node -> token that ends there
};

}  // namespace so
