#include "base/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

namespace so {
namespace {

constexpr std::string_view largest = "1.7976931348623157e308";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_of_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+' || c == '-' || c == '.' ||
         c == '_';
}

// The position behind the string whose opening quote is at `at`; the end of the text if it is not closed.
std::size_t behind_string(std::string_view json, std::size_t at) {
  for (std::size_t i = at + 1; (i = json.find('"', i)) != std::string_view::npos; ++i) {
    std::size_t first = i;
    while (json[first - 1] == '\\') --first;  // ends at the opening quote at the latest
    if ((i - first) % 2 == 0) return i + 1;
  }
  return json.size();
}

bool fits_64_bits(std::string_view integer) {
  std::int64_t negative = 0;
  std::uint64_t positive = 0;
  const char *begin = integer.data(), *end = begin + integer.size();
  return integer.front() == '-' ? std::from_chars(begin, end, negative).ec == std::errc()
                                : std::from_chars(begin, end, positive).ec == std::errc();
}

// How a strict parser can take `word`, a number or what Python writes for one; nothing if it can as it stands, or if it
// is no number.
std::optional<std::string> plain_number(std::string_view word) {
  if (word == "NaN" || word == "Infinity") return std::string(largest);
  if (word == "-Infinity") return "-" + std::string(largest);
  const std::string_view digits = word.substr(word.front() == '-' ? 1 : 0);
  if (digits.empty() || !is_digit(digits.front())) return std::nullopt;
  if (digits.front() == '0' && digits.size() > 1 && is_digit(digits[1])) return std::nullopt;  // no number in JSON
  const bool integer = std::all_of(digits.begin(), digits.end(), is_digit);
  if (integer && (digits.size() < 19 || fits_64_bits(word))) return std::nullopt;
  if (!integer && digits.size() < 300 && digits.find_first_of("eE") == std::string_view::npos) return std::nullopt;
  const std::string copy(word);
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  if (end != copy.c_str() + copy.size()) return std::nullopt;
  if (std::isinf(value)) return (value < 0 ? "-" : "") + std::string(largest);
  return integer ? std::optional(copy + ".0") : std::nullopt;
}

using Replace = std::function<std::string(std::string_view word, std::string plain)>;

std::optional<std::string> replaced_numbers(std::string_view json, const Replace& replace) {
  std::optional<std::string> out;
  std::size_t copied = 0;
  for (std::size_t i = 0; i < json.size();) {
    if (json[i] == '"') {
      i = behind_string(json, i);
      continue;
    }
    if (!is_of_word(json[i])) {
      ++i;
      continue;
    }
    const std::size_t begin = i;
    while (i < json.size() && is_of_word(json[i])) ++i;
    const std::string_view word = json.substr(begin, i - begin);
    if (auto plain = plain_number(word)) {
      if (!out) out.emplace();
      out->append(json, copied, begin - copied).append(replace(word, std::move(*plain)));
      copied = i;
    }
  }
  if (out) out->append(json, copied);
  return out;
}

// Returns the code unit of an escape \uXXXX that begins at `at`; none where no such escape stands there.
std::optional<unsigned> escaped_unit(std::string_view json, std::size_t at) {
  unsigned unit = 0;
  if (json.substr(at, 2) != "\\u" || at + 6 > json.size()) return std::nullopt;
  const auto read = std::from_chars(json.data() + at + 2, json.data() + at + 6, unit, 16);
  return read.ptr == json.data() + at + 6 ? std::optional(unit) : std::nullopt;
}

std::optional<std::string> replaced_half_pairs(std::string_view json,
                                               const std::function<std::string(std::string_view escape)>& replace) {
  std::optional<std::string> out;
  std::size_t copied = 0;
  for (std::size_t i = 0; (i = json.find('\\', i)) != std::string_view::npos;) {
    const auto unit = escaped_unit(json, i);
    if (!unit || (*unit & 0xf800u) != 0xd800u) {
      i += 2;  // another escape, of one character at least
      continue;
    }
    const auto second = *unit < 0xdc00u ? escaped_unit(json, i + 6) : std::nullopt;
    if (second && (*second & 0xfc00u) == 0xdc00u) {
      i += 12;
      continue;
    }
    if (!out) out.emplace();
    out->append(json, copied, i - copied).append(replace(json.substr(i, 6)));
    copied = i += 6;
  }
  if (out) out->append(json, copied);
  return out;
}

}  // namespace

std::optional<std::string> with_plain_numbers(std::string_view json) {
  auto pairs = replaced_half_pairs(json, [](std::string_view) { return "\\ufdd1"; });
  auto numbers = replaced_numbers(pairs ? std::string_view(*pairs) : json,
                                  [](std::string_view, std::string plain) { return plain; });
  return numbers ? std::move(numbers) : std::move(pairs);
}

bool nests_deeper(std::string_view json, std::size_t levels) {
  std::size_t depth = 0;
  for (std::size_t i = 0; i < json.size();) {
    switch (json[i]) {
      case '"':
        i = behind_string(json, i);
        continue;
      case '[':
      case '{':
        if (++depth > levels) return true;
        break;
      case ']':
      case '}':
        if (depth > 0) --depth;
        break;
      default:
        break;
    }
    ++i;
  }
  return false;
}

HeldNumbers::HeldNumbers(std::string_view json) : mark_("held number ") {
  while (json.find(mark_) != std::string_view::npos) mark_ += '-';
  const auto held = replaced_numbers(json, [&](std::string_view word, const std::string&) {
    numbers_.emplace_back(word);
    return fmt::format("\"{}{}\"", mark_, numbers_.size() - 1);
  });
  text_ = held ? *held : std::string(json);
  const auto whole = replaced_half_pairs(text_, [&](std::string_view escape) {
    halves_.emplace_back(escape);
    return fmt::format("{}half {};", mark_, halves_.size() - 1);
  });
  if (whole) text_ = *whole;
}

std::string HeldNumbers::restored(std::string_view written) const {
  std::string out(written);
  for (std::size_t i = 0; i < numbers_.size(); ++i) {
    const std::string held = fmt::format("\"{}{}\"", mark_, i);
    if (const std::size_t at = out.find(held); at != std::string::npos) out.replace(at, held.size(), numbers_[i]);
  }
  for (std::size_t i = 0; i < halves_.size(); ++i) {
    const std::string held = fmt::format("{}half {};", mark_, i);
    if (const std::size_t at = out.find(held); at != std::string::npos) out.replace(at, held.size(), halves_[i]);
  }
  return out;
}

namespace {

// Takes no notice of anything but the position of the first fault.
struct FaultFinder : nlohmann::json_sax<nlohmann::json> {
  std::optional<std::size_t> at;
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    at = position;
    return false;
  }
};

}  // namespace

std::string json_fault(std::string_view json, std::string_view reason) {
  FaultFinder finder;
  const auto plain = with_plain_numbers(json);
  const std::string_view text = plain ? std::string_view(*plain) : json;
  nlohmann::json::sax_parse(text.begin(), text.end(), &finder);
  if (!finder.at) return fmt::format(": {}", reason);
  const std::string_view before = text.substr(0, std::min(*finder.at, text.size()));
  return fmt::format(":{}: {}", 1 + std::count(before.begin(), before.end(), '\n'), reason);
}

}  // namespace so
