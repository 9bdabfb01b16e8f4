// Hand-written equals of the split patterns that models ship most: same pieces, without a regular expression engine.
#pragma once

#include <cstddef>
#include <string_view>

namespace so {

// The end of the piece that begins at text[at]; at < text.size(), and text is valid UTF-8. The pieces follow one
// another without gaps: most of these patterns match everywhere, and for the others what lies between matches is a
// piece, too.
using FastSplit = std::size_t (*)(std::string_view text, std::size_t at);

// Null for a pattern that has no hand-written equal. `gaps_are_pieces`: what does not match is not dropped.
FastSplit fast_split_for(std::string_view pattern, bool gaps_are_pieces = true);

// The pattern of the ByteLevel pre-tokenizer with use_regex (GPT-2).
extern const std::string_view gpt2_split_pattern;

// The pre-tokenizer "Digits" isolates each number, or each run of numbers.
inline constexpr std::string_view each_digit_pattern = R"(\p{N})";
inline constexpr std::string_view digit_runs_pattern = R"(\p{N}+)";

}  // namespace so
