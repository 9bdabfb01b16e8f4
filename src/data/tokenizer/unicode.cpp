#include "data/tokenizer/unicode.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>

namespace so {
namespace {

using namespace character_bits;

struct Run {
  std::uint32_t first;
  std::uint8_t entry;
};

constexpr Run runs[] = {
#include "data/tokenizer/unicode_table.inc"
};

// The White_Space property, unchanged since Unicode 6.3.
bool is_white_space(std::uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::uint8_t bits_of(std::uint32_t code_point, Category category) {
  std::uint8_t bits = 0;
  switch (category) {
    case Category::Lu:
    case Category::Lt:
      bits = letter | upper_like;
      break;
    case Category::Ll:
      bits = letter | lower_like;
      break;
    case Category::Lm:
    case Category::Lo:
      bits = letter | upper_like | lower_like;
      break;
    case Category::Mn:
    case Category::Mc:
    case Category::Me:
      bits = mark | upper_like | lower_like;
      break;
    case Category::Nd:
    case Category::Nl:
    case Category::No:
      bits = number;
      break;
    default:
      break;
  }
  if (is_white_space(code_point)) bits |= space;
  if (code_point == '\r' || code_point == '\n') bits |= newline;
  return bits;
}

}  // namespace

const UnicodeTable& UnicodeTable::get() {
  static const UnicodeTable table;
  return table;
}

UnicodeTable::UnicodeTable() {
  std::map<std::string, std::uint16_t> known;  // equal blocks are kept once
  const Run* run = std::begin(runs);
  for (std::uint32_t block = 0; block < block_.size(); ++block) {
    std::string entries(128, '\0');
    std::string bits(128, '\0');
    for (std::uint32_t i = 0; i < 128; ++i) {
      const std::uint32_t code_point = block << 7 | i;
      while (run + 1 != std::end(runs) && (run + 1)->first <= code_point) ++run;
      entries[i] = static_cast<char>(run->entry);
      bits[i] = static_cast<char>(bits_of(code_point, static_cast<Category>(run->entry & 31)));
    }
    const auto [at, added] = known.emplace(entries + bits, static_cast<std::uint16_t>(entries_.size() >> 7));
    if (added) {
      entries_.insert(entries_.end(), entries.begin(), entries.end());
      bits_.insert(bits_.end(), bits.begin(), bits.end());
    }
    block_[block] = at->second;
  }
}

bool UnicodeTable::is_word(std::uint32_t c) const {
  if (bits(c) & (letter | mark)) return true;
  const Category category_of = category(c);
  if (category_of == Category::Nd || category_of == Category::Nl || category_of == Category::Pc) return true;
  // Join_Control, then the symbols (So) that are Alphabetic.
  return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

}  // namespace so
