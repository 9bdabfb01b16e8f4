#include "base/character.h"

namespace so {

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const std::size_t bytes = lead >= 0xF0 && lead < 0xF5 ? 4 : lead >= 0xE0 && lead < 0xF0 ? 3 : lead >= 0xC2 ? 2 : 0;
  if (bytes == 0 || lead >= 0xF5 || text.size() < bytes) return {lead, 1, false};
  std::uint32_t code = lead & (0xFFu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {lead, 1, false};
    code = code << 6 | (byte(i) & 0x3F);
  }
  const bool overlong = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  if (overlong || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return {lead, 1, false};
  return {code, bytes, true};
}

bool steers_terminal(const Character& c) {
  if (!c.valid || c.code < 0x20 || (c.code >= 0x7F && c.code < 0xA0)) return true;
  return (c.code >= 0x2028 && c.code <= 0x202E) || (c.code >= 0x2066 && c.code <= 0x2069);
}

}  // namespace so
