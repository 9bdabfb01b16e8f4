#include "data/tokenizer/fast_split.h"

#include <array>

#include "data/tokenizer/unicode.h"
#include "data/tokenizer/utf8.h"

namespace so {
namespace {

using namespace character_bits;

struct Character {
  std::size_t end;    // where the next one begins
  std::uint8_t bits;  // character_bits
};

class Text {
 public:
  explicit Text(std::string_view text) : text_(text), table_(UnicodeTable::get()) {}

  std::size_t size() const { return text_.size(); }
  char byte(std::size_t at) const { return at < text_.size() ? text_[at] : '\0'; }

  Character at(std::size_t at) const {
    const CodePoint c = code_point_at(text_, at);
    return {at + c.length, table_.bits(c.value)};
  }
  // At the end of the text there is a character without bits and without length.
  Character peek(std::size_t at) const { return at < text_.size() ? this->at(at) : Character{at, 0}; }

  bool has(std::size_t at, std::uint8_t any) const { return at < text_.size() && this->at(at).bits & any; }
  bool lacks(std::size_t at, std::uint8_t all) const { return at < text_.size() && !(this->at(at).bits & all); }

  std::size_t skip(std::size_t at, std::uint8_t any) const {
    while (at < text_.size()) {
      const Character c = this->at(at);
      if (!(c.bits & any)) break;
      at = c.end;
    }
    return at;
  }
  std::size_t skip_others(std::size_t at, std::uint8_t none) const {
    while (at < text_.size()) {
      const Character c = this->at(at);
      if (c.bits & none) break;
      at = c.end;
    }
    return at;
  }
  std::size_t before(std::size_t at) const { return previous_character(text_, at); }

 private:
  std::string_view text_;
  const UnicodeTable& table_;
};

// 's|'t|'re|'ve|'m|'ll|'d: its end, or `at` if there is none. Ignoring case, the long s (U+017F) is an s, too.
template <bool ignore_case>
std::size_t contraction(const Text& text, std::size_t at) {
  if (text.byte(at) != '\'') return at;
  const auto lower = [&](std::size_t i) {
    const char c = text.byte(i);
    return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = lower(at + 1);
  const char second = lower(at + 2);
  switch (first) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return at + 2;
    case 'r':
    case 'v':
      return second == 'e' ? at + 3 : at;
    case 'l':
      return second == 'l' ? at + 3 : at;
    case '\xC5':
      return ignore_case && second == '\xBF' ? at + 3 : at;
    default:
      return at;
  }
}

// \s*[\r\n]+|\s+(?!\S)|\s+ : there is a white space at text[at].
std::size_t line_end_or_spaces(const Text& text, std::size_t at) {
  std::size_t end = at;
  std::size_t last = at;  // the run's last character
  std::size_t after_newline = 0;
  while (end < text.size()) {
    const Character c = text.at(end);
    if (!(c.bits & space)) break;
    if (c.bits & newline) after_newline = c.end;
    last = end;
    end = c.end;
  }
  if (after_newline != 0) return after_newline;
  // A space in front of something else is left to the next piece, unless it is alone.
  return end < text.size() && last > at ? last : end;
}

std::size_t spaces(const Text& text, std::size_t at) {  // \s+(?!\S)|\s+
  const std::size_t end = text.skip(at, space);
  const std::size_t last = text.before(end);
  return end < text.size() && last > at ? last : end;
}

enum class Tail { none, newlines, newlines_and_slashes };  // what a run of punctuation takes along

//  ?[^\s\p{L}\p{N}]+ with its tail: its end, or `at` if there is none.
template <Tail tail>
std::size_t punctuation(const Text& text, std::size_t at) {
  const std::size_t begin = text.byte(at) == ' ' ? at + 1 : at;
  if (!text.lacks(begin, space | letter | number)) return at;
  std::size_t end = text.skip_others(begin, space | letter | number);
  if constexpr (tail != Tail::none) {
    while (text.byte(end) == '\r' || text.byte(end) == '\n' ||
           (tail == Tail::newlines_and_slashes && text.byte(end) == '/'))
      ++end;
  }
  return end;
}

// \p{N}{1,max}: there is a number at text[at].
template <int max>
std::size_t numbers(const Text& text, std::size_t at) {
  for (int i = 0; i < max && text.has(at, number); ++i) at = text.at(at).end;
  return at;
}

// Llama 3, Qwen 2 and their like.
template <int digits, Tail tail>
std::size_t split_cl100k(std::string_view view, std::size_t at) {
  const Text text(view);
  if (const std::size_t end = contraction<true>(text, at); end != at) return end;
  const Character c = text.at(at);
  if (c.bits & letter) return text.skip(c.end, letter);
  if (c.bits & number) return numbers<digits>(text, at);
  if (!(c.bits & newline) && text.has(c.end, letter)) return text.skip(c.end, letter);  // one other character in front
  if (const std::size_t end = punctuation<tail>(text, at); end != at) return end;
  return line_end_or_spaces(text, at);
}

// A word of o200k from `begin` on: [upper-like]*[lower-like]+, or, if that fails, [upper-like]+ (whose lower-like rest
// is then empty). Gives `begin` if there is none.
std::size_t mixed_case_word(const Text& text, std::size_t begin) {
  std::size_t end = begin;
  std::size_t after_lower = begin;  // behind the last character of the run that is lower-like as well
  while (end < text.size()) {
    const Character c = text.at(end);
    if (!(c.bits & upper_like)) break;
    end = c.end;
    if (c.bits & lower_like) after_lower = end;
  }
  if (text.has(end, lower_like)) return text.skip(end, lower_like);
  return after_lower != begin ? after_lower : begin;
}

std::size_t split_o200k(std::string_view view, std::size_t at) {
  const Text text(view);
  const Character c = text.at(at);
  const bool prefix = !(c.bits & (newline | letter | number));  // [^\r\n\p{L}\p{N}]? takes it, if a word follows
  // First both ways to begin a word that has something lower-like, then those that are upper-like only.
  std::size_t end = at;
  if (prefix) {
    const std::size_t word = mixed_case_word(text, c.end);
    if (word != c.end) end = word;
  }
  if (end == at) end = mixed_case_word(text, at);
  if (end == at && prefix) {
    const std::size_t word = text.skip(c.end, upper_like);
    if (word != c.end) end = word;
  }
  if (end == at) end = text.skip(at, upper_like);
  if (end != at) return contraction<true>(text, end);
  if (c.bits & number) return numbers<3>(text, at);
  end = punctuation<Tail::newlines_and_slashes>(text, at);
  return end != at ? end : line_end_or_spaces(text, at);
}

std::size_t split_gpt2(std::string_view view, std::size_t at) {
  const Text text(view);
  if (const std::size_t end = contraction<false>(text, at); end != at) return end;
  const std::size_t begin = text.byte(at) == ' ' && text.lacks(at + 1, space) ? at + 1 : at;
  const std::uint8_t bits = text.at(begin).bits;
  if (bits & letter) return text.skip(begin, letter);
  if (bits & number) return text.skip(begin, number);
  if (!(bits & space)) return text.skip_others(begin, space | letter | number);
  return spaces(text, at);
}

// \p{N} or \p{N}+ and what lies between its matches (the pre-tokenizer "Digits").
template <bool one>
std::size_t split_digits(std::string_view view, std::size_t at) {
  const Text text(view);
  const Character c = text.at(at);
  if (!(c.bits & number)) return text.skip_others(c.end, number);
  return one ? c.end : text.skip(c.end, number);
}

struct Known {
  std::string_view pattern;
  FastSplit split;
  bool matches_everywhere = true;
};

constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr std::array known_patterns = {
    // Llama 3, Phi-4 (cl100k)
    Known{
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        split_cl100k<3, Tail::newlines>},
    // Qwen 2, Qwen 3
    Known{
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        split_cl100k<1, Tail::newlines>},
    // Seed-OSS, with its line ends spelt as escapes and as the characters themselves
    Known{
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)",
        split_cl100k<1, Tail::none>},
    Known{"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| "
          "?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
          split_cl100k<1, Tail::none>},
    // GPT-OSS (o200k)
    Known{
        R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
        R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
        R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        split_o200k},
    Known{gpt2_pattern, split_gpt2},
    // DeepSeek Coder, StarCoder 2, SmolLM
    Known{each_digit_pattern, split_digits<true>, false},
    Known{digit_runs_pattern, split_digits<false>, false},
};

}  // namespace

const std::string_view gpt2_split_pattern = gpt2_pattern;

FastSplit fast_split_for(std::string_view pattern, bool gaps_are_pieces) {
  for (const Known& known : known_patterns) {
    if (known.pattern == pattern && (known.matches_everywhere || gaps_are_pieces)) return known.split;
  }
  return nullptr;
}

}  // namespace so
