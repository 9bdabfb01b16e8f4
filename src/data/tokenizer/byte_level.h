// GPT-2's byte alphabet: each byte is spelt as one printable character, so that tokens are strings without spaces and
// control characters. 21..7E, A1..AC and AE..FF stand for themselves; the other 68 bytes, in order, are U+0100 onwards.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace so {

std::string spell_bytes(std::string_view bytes);

// The bytes that a token spells; nothing if it has a character outside the alphabet. `token` must be valid UTF-8.
std::optional<std::string> bytes_of_spelling(std::string_view token);

}  // namespace so
