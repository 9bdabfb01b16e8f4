// The text that tokens on characters stand for.
#pragma once

#include <string>
#include <string_view>

namespace so {

// Appends the text of a token as SentencePiece spells it: "▁" is a space, and "<0x0A>" a byte.
void append_character_surface(std::string_view token, std::string& text);

}  // namespace so
