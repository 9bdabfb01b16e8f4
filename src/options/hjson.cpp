#include "options/hjson.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/option_table.h"
#include "base/terminal.h"

namespace so {
namespace {

using json = nlohmann::json;

constexpr int max_depth = 32;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

class HjsonReader {
 public:
  HjsonReader(std::string_view text, std::string_view name) : text_(text), name_(name) {}

  json read() {
    if (text_.substr(0, 3) == "\xef\xbb\xbf") at_ = 3;
    if (const std::size_t good = utf8_prefix(text_); good < text_.size()) refuse(good, "the file is not UTF-8");
    skip_space();
    const char first = peek();
    const bool has_brackets = first == '{' || first == '[';
    json value = has_brackets ? read_value(1) : read_members(1, /*has_braces=*/false);
    skip_space();
    if (at_ < text_.size()) refuse(at_, "the end of the file should be here");
    return value;
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(std::size_t at, fmt::format_string<Args...> text, Args&&... args) const {
    fail("{}: not valid JSON: {}", place(at), fmt::format(text, std::forward<Args>(args)...));
  }
  std::string place(std::size_t at) const {
    const std::string_view before = text_.substr(0, at);
    const std::size_t line = before.rfind('\n') == before.npos ? 0 : before.rfind('\n') + 1;
    return fmt::format("{}:{}:{}", name_, 1 + std::count(before.begin(), before.end(), '\n'), at - line + 1);
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }  // NUL too where one stands in the file
  bool begins(std::string_view what) const { return text_.substr(at_, what.size()) == what; }
  bool begins_comment() const { return begins("#") || begins("//") || begins("/*"); }

  void skip_space() {
    while (at_ < text_.size()) {
      if (is_space(text_[at_])) {
        ++at_;
      } else if (begins("#") || begins("//")) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (begins("/*")) {
        const std::size_t close = text_.find("*/", at_ + 2);
        if (close == text_.npos) refuse(at_, "this comment has no end; add */");
        at_ = close + 2;
      } else {
        return;
      }
    }
  }

  // Members up to the closing brace, which is taken too, or to the end of the file.
  json read_members(int depth, bool has_braces) {
    json object = json::object();
    while (true) {
      skip_space();
      if (at_ == text_.size()) {
        if (has_braces) refuse(at_, "the file ends within an object; add }}");
        if (object.empty()) refuse(0, "the file is empty");
        return object;
      }
      if (has_braces && peek() == '}') {
        ++at_;
        return object;
      }
      const std::size_t key_begin = at_;
      std::string key = read_key();
      if (object.contains(key)) fail("{}: key {} is given twice in one object", place(key_begin), in_quotes(key));
      skip_space();
      if (peek() != ':') refuse(key_begin, "no : stands behind the name {}", in_quotes(key));
      ++at_;
      skip_space();
      object.emplace(std::move(key), read_value(depth + 1));
      skip_space();
      if (peek() == ',') ++at_;
    }
  }

  json read_items(int depth) {
    json list = json::array();
    while (true) {
      skip_space();
      if (at_ == text_.size()) refuse(at_, "the file ends within a list; add ]");
      if (peek() == ']') {
        ++at_;
        return list;
      }
      list.push_back(read_value(depth + 1));
      skip_space();
      if (peek() == ',') ++at_;
    }
  }

  std::string read_key() {
    if (peek() == '"' || peek() == '\'') return read_quoted();
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::string_view("{}[],:\n").find(text_[at_]) == std::string_view::npos) ++at_;
    const std::string_view key = trimmed(text_.substr(begin, at_ - begin));
    if (key.empty()) refuse(begin, "the name of a value should be here");
    if (at_ == text_.size() || std::any_of(key.begin(), key.end(), is_space))
      refuse(begin, "{} is no name with a : behind it", in_quotes(printable(key)));
    return std::string(key);
  }

  json read_value(int depth) {
    if (depth > max_depth) fail("{}: nested deeper than {} levels", name_, max_depth);
    switch (peek()) {
      case '{':
        ++at_;
        return read_members(depth, /*has_braces=*/true);
      case '[':
        ++at_;
        return read_items(depth);
      case '"':
      case '\'':
        return read_quoted();
      default:
        return read_bare();
    }
  }

  // Escapes are JSON's, so its parser takes them.
  std::string read_quoted() {
    const std::size_t begin = at_;
    if (begins("'''")) refuse(begin, "texts between ''' are not read; write it in quotes");
    const char quote = text_[at_++];
    std::string text = "\"";
    for (;; ++at_) {
      if (at_ == text_.size() || text_[at_] == '\n') refuse(begin, "the quote that opens here is not closed");
      const char c = text_[at_];
      if (c == quote) break;
      if (c == '\\' && at_ + 1 < text_.size()) {
        ++at_;
        text += text_[at_] == '\'' ? "'" : std::string{c, text_[at_]};
      } else {
        text += c == '"' ? "\\\"" : std::string(1, c);
      }
    }
    ++at_;
    const json value = json::parse(text + '"', nullptr, /*allow_exceptions=*/false);
    if (!value.is_string()) refuse(begin, "this text has an escape or a control character that JSON does not know");
    return value.get<std::string>();
  }

  // A number, true, false or null ends where JSON ends it; anything else is a text that ends with its line.
  json read_bare() {
    const std::size_t begin = at_;
    if (begin == text_.size() || std::string_view("{}[],:").find(text_[begin]) != std::string_view::npos)
      refuse(begin, "a value should be here");
    while (at_ < text_.size() && std::string_view(",}]\n").find(text_[at_]) == std::string_view::npos &&
           !begins_comment())
      ++at_;
    const std::string_view token = trimmed(text_.substr(begin, at_ - begin));
    if (token == "true" || token == "false" || token == "null" || is_number(token)) {
      // A number too large for any type is a text, which its key refuses.
      const json value = json::parse(token.begin(), token.end(), nullptr, /*allow_exceptions=*/false);
      return value.is_discarded() ? json(std::string(token)) : value;
    }
    at_ = std::min(text_.find('\n', begin), text_.size());
    return std::string(trimmed(text_.substr(begin, at_ - begin)));
  }

  static bool is_number(std::string_view token) {
    const auto digits = [&] {
      const std::size_t count = std::min(token.find_first_not_of("0123456789"), token.size());
      token.remove_prefix(count);
      return count;
    };
    if (token.substr(0, 1) == "-") token.remove_prefix(1);
    const bool leading_zero = token.substr(0, 1) == "0";
    if (const std::size_t count = digits(); count == 0 || (leading_zero && count > 1)) return false;
    if (token.substr(0, 1) == ".") {
      token.remove_prefix(1);
      if (digits() == 0) return false;
    }
    if (token.substr(0, 1) == "e" || token.substr(0, 1) == "E") {
      token.remove_prefix(1);
      if (token.substr(0, 1) == "+" || token.substr(0, 1) == "-") token.remove_prefix(1);
      if (digits() == 0) return false;
    }
    return token.empty();
  }

  const std::string_view text_;
  const std::string_view name_;
  std::size_t at_ = 0;
};

}  // namespace

nlohmann::json parse_hjson(std::string_view text, std::string_view name) { return HjsonReader(text, name).read(); }

}  // namespace so
