// How many tokens a text can have, without encoding it.
#pragma once

#include <cstdint>
#include <string_view>

#include "data/tokenizer/tokenizer_json.h"

namespace so {

// An upper bound on a text's tokens: `ascii` for each ASCII byte, `other` for each other byte, and `front` once. A
// token stands for at least one byte of the text after the tokenizer's steps, so these numbers say how much the steps
// can lengthen it. Tokens of the post-processor are not included.
struct TokenBound {
  std::uint64_t ascii = 1, other = 1, front = 0;

  void grow(std::uint64_t by) {
    for (std::uint64_t* part : {&ascii, &other, &front}) multiply(*part, by);
  }
  // No further than 2^32, so that no product of steps becomes small again. A text does not become as much longer: the
  // normalizer refuses that (normalize_steps.h).
  static void multiply(std::uint64_t& part, std::uint64_t by) {
    constexpr std::uint64_t most = std::uint64_t{1} << 32;
    part = by != 0 && part > most / by ? most : part * by;
  }
  std::uint64_t of(std::string_view text) const;
};

TokenBound token_bound_of(const TokenizerSpec& spec);

}  // namespace so
