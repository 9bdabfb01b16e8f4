// UTF-8, a character at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace so {

struct Character {
  std::uint32_t code = 0;  // of a byte that is not UTF-8: the byte
  std::size_t bytes = 1;
  bool valid = false;
};

// The character that `text`, which is not empty, begins with.
Character first_character(std::string_view text);

// Whether a terminal, or who reads it, would take the character for more than a sign: control characters (C0, DEL and
// C1; line ends and tabs too), line and paragraph separators, and those that turn the order of what follows
// (embeddings, overrides and isolates of bidirectional text). A byte that is not UTF-8 is one, since terminals that do
// not read UTF-8 know control characters among them.
bool steers_terminal(const Character& character);

}  // namespace so
