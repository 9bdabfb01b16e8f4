#include "data/tokenizer/utf8.h"

#include <simdjson.h>

namespace so {
namespace {

struct Sequence {
  std::size_t length;  // of the valid character, or of the maximal invalid sequence
  bool valid;
  bool cut_off;  // not valid only because the text ends here
};

// Table 3-7 of the Unicode Standard: the second byte's range depends on the first, the others are 80..BF.
Sequence sequence_at(std::string_view bytes, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {1, false, false};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (std::size_t i = 1; i < length; ++i) {
    if (at + i == bytes.size()) return {i, false, true};
    if (byte(at + i) < low || byte(at + i) > high) return {i, false, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true, false};
}

}  // namespace

void append_utf8(std::string& out, std::uint32_t code_point) {
  const auto put = [&](std::uint32_t value) { out.push_back(static_cast<char>(value)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

bool is_valid_utf8(std::string_view text) { return simdjson::validate_utf8(text.data(), text.size()); }

void append_repaired_utf8(std::string& out, std::string_view bytes) {
  if (is_valid_utf8(bytes)) {
    out.append(bytes);
    return;
  }
  for (std::size_t at = 0; at < bytes.size();) {
    const Sequence sequence = sequence_at(bytes, at);
    if (sequence.valid) {
      out.append(bytes, at, sequence.length);
    } else {
      out.append("\xEF\xBF\xBD");
    }
    at += sequence.length;
  }
}

std::size_t unfinished_utf8_tail(std::string_view bytes) {
  for (std::size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const auto byte = static_cast<unsigned char>(bytes[bytes.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // a continuation byte: its lead is further left
    return sequence_at(bytes, bytes.size() - back).cut_off ? back : 0;
  }
  return 0;
}

}  // namespace so
