// UTF-8: decoding one code point, and repair of invalid text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace so {

struct CodePoint {
  std::uint32_t value;
  std::uint32_t length;  // bytes
};

// The code point at text[at]. The text must be valid UTF-8 and `at` the first byte of a character.
inline CodePoint code_point_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[at + i])); };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

// The first byte of the character before `at` (at > 0). The text must be valid UTF-8.
inline std::size_t previous_character(std::string_view text, std::size_t at) {
  do --at;
  while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

void append_utf8(std::string& out, std::uint32_t code_point);

bool is_valid_utf8(std::string_view text);

// Without the byte order mark that some editors put before a text.
inline std::string_view without_mark(std::string_view text) {
  constexpr std::string_view mark = "\xef\xbb\xbf";
  return text.starts_with(mark) ? text.substr(mark.size()) : text;
}

// Appends `bytes`, each maximal invalid sequence ("maximal subpart", Unicode Standard, section 3.9) as one U+FFFD.
void append_repaired_utf8(std::string& out, std::string_view bytes);

// How many bytes at the end are the beginning of a character that may still be completed (0 to 3).
std::size_t unfinished_utf8_tail(std::string_view bytes);

}  // namespace so
