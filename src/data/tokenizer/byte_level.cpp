#include "data/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "data/tokenizer/utf8.h"

namespace so {
namespace {

struct Alphabet {
  std::array<std::uint16_t, 256> character{};
  std::array<std::int16_t, 256 + 68> byte{};

  Alphabet() {
    byte.fill(-1);
    std::uint16_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const auto c = itself ? static_cast<std::uint16_t>(b) : next++;
      character[static_cast<std::size_t>(b)] = c;
      byte[c] = static_cast<std::int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet table;
  return table;
}

}  // namespace

std::string spell_bytes(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) append_utf8(out, alphabet().character[static_cast<unsigned char>(c)]);
  return out;
}

std::optional<std::string> bytes_of_spelling(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (std::size_t at = 0; at < token.size();) {
    const CodePoint c = code_point_at(token, at);
    if (c.value >= alphabet().byte.size() || alphabet().byte[c.value] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(alphabet().byte[c.value]));
    at += c.length;
  }
  return bytes;
}

}  // namespace so
