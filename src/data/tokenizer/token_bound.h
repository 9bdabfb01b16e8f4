// How many tokens a text can have, without encoding it.
#pragma once

#include <cstdint>
#include <string_view>

#include "data/tokenizer/tokenizer_json.h"

namespace so {

// A text has at most so many tokens for each byte, ASCII or not, and some in front. A token stands for a byte or more
// of what the tokenizer's steps make of the text, so the numbers say by how much the steps can lengthen it. Tokens of
// the post-processor are not among them.
struct TokenBound {
  std::uint64_t ascii = 1, other = 1, front = 0;

  void grow(std::uint64_t by) {
    ascii *= by;
    other *= by;
    front *= by;
  }
  std::uint64_t of(std::string_view text) const;
};

TokenBound token_bound_of(const TokenizerSpec& spec);

}  // namespace so
