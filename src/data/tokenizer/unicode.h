// Character classes, fixed at Unicode 16.0 so that ids do not depend on the versions of PCRE2 and utf8proc installed.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace so {

// In the order of scripts/make_unicode_table.py.
// clang-format off
enum class Category : std::uint8_t {
  Lu, Ll, Lt, Lm, Lo, Mn, Mc, Me, Nd, Nl, No, Pc, Pd, Ps, Pe, Pi, Pf, Po, Sm, Sc, Sk, So, Zs, Zl, Zp, Cc, Cf, Cs, Co, Cn
};
// clang-format on

// The properties of a character that the split patterns ask for; they can be combined.
namespace character_bits {
inline constexpr std::uint8_t letter = 1;       // \p{L}
inline constexpr std::uint8_t number = 2;       // \p{N}
inline constexpr std::uint8_t mark = 4;         // \p{M}
inline constexpr std::uint8_t space = 8;        // \s: White_Space
inline constexpr std::uint8_t newline = 16;     // CR or LF
inline constexpr std::uint8_t upper_like = 32;  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
inline constexpr std::uint8_t lower_like = 64;  // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
}  // namespace character_bits

class UnicodeTable {
 public:
  static const UnicodeTable& get();

  std::uint8_t bits(std::uint32_t code_point) const { return bits_[index(code_point)]; }
  Category category(std::uint32_t code_point) const { return static_cast<Category>(entries_[index(code_point)] & 31); }
  bool in_unicode_9(std::uint32_t code_point) const { return entries_[index(code_point)] >> 5 == 0; }
  bool in_unicode_14(std::uint32_t code_point) const { return entries_[index(code_point)] >> 5 <= 1; }
  // \w of the Rust regex crate, which decides what a "single word" is: Alphabetic, M, Nd, Pc, Join_Control.
  bool is_word(std::uint32_t code_point) const;

 private:
  UnicodeTable();
  std::size_t index(std::uint32_t code_point) const {
    return static_cast<std::size_t>(block_[code_point >> 7]) << 7 | (code_point & 127);
  }

  std::array<std::uint16_t, (0x110000 >> 7)> block_{};  // block of 128 code points -> its place in the arrays below
  std::vector<std::uint8_t> entries_;                   // category | age << 5
  std::vector<std::uint8_t> bits_;
};

}  // namespace so
