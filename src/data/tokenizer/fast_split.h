// Hand-written equals of the split patterns that models ship most: same pieces, without a regular expression engine.
#pragma once

#include <cstddef>
#include <string_view>

namespace so {

// The end of the piece that begins at text[at]; at < text.size(), and text is valid UTF-8. These patterns match
// everywhere, so the pieces follow one another without gaps.
using FastSplit = std::size_t (*)(std::string_view text, std::size_t at);

// Null for a pattern that has no hand-written equal.
FastSplit fast_split_for(std::string_view pattern);

// The pattern of the ByteLevel pre-tokenizer with use_regex (GPT-2).
extern const std::string_view gpt2_split_pattern;

}  // namespace so
