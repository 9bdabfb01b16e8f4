// JSON as Python's json module reads and writes it, made fit for strict parsers. Every reader of a file that another
// program wrote goes through here; no JSON library is needed to include this.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace so {

// Python writes NaN, Infinity and -Infinity, and integers of any length ("model_max_length":
// 1000000000000000019884624838656); strict parsers refuse the whole document for one of them. This gives the document
// with each such number as a double: an integer beyond 64 bits as the nearest one; NaN, infinities and what exceeds the
// range as the largest finite one. A field that is used has a range, and none reaches there; a field that is not used
// stops nobody. Half of a surrogate pair ("\ud83d", where a text was cut within a character) becomes half_pair, which
// who uses a text looks for. Nothing if there is none of these: the text is good as it stands. Line ends stay where
// they are.
std::optional<std::string> with_plain_numbers(std::string_view json);

// A noncharacter, U+FDD1, which no text has.
inline constexpr std::string_view half_pair = "\xef\xb7\x91";

// The same for a document that is parsed, changed and written again: such numbers and halves are strings meanwhile.
class HeldNumbers {
 public:
  explicit HeldNumbers(std::string_view json);
  const std::string& text() const { return text_; }      // to be parsed
  std::string restored(std::string_view written) const;  // `written` with all as it was
 private:
  std::string text_, mark_;
  std::vector<std::string> numbers_, halves_;
};

// Whether arrays and objects stand more than `levels` deep in one another. Text that is not JSON has an answer too.
bool nests_deeper(std::string_view json, std::size_t levels);

// Where and why a document that a parser refused is not JSON: ":LINE: REASON", to be put behind the file's name; the
// reason alone, ": REASON", where another parser finds no fault. `reason` is that of the parser that refused.
std::string json_fault(std::string_view json, std::string_view reason);

}  // namespace so
