// Where Oniguruma (Ruby syntax) and PCRE2 (UTF and UCP) differ on what split patterns use:
//   \s \S        PCRE2 counts U+180E as a space: written as \p{White_Space}
//   \d \D        the same set; written as \p{Nd} for plainness
//   {n,m}+       possessive in PCRE2, a repeated count in Oniguruma: x{n,m}+ is written as (?:x{n,m})+
//   {n}?  {,m}   lazy in PCRE2, optional in Oniguruma;  literal in PCRE2
//   $            the end of any line in Oniguruma: written as (?=\n|\z)
//   ^            the beginning of any line in Oniguruma
//   \h \v \w \b  other sets
//   [a&&b] [[a]] sets in Oniguruma only
//   (?i) beyond ASCII, or on a set other than of letters: other multi-character foldings
// Anything that the code below does not list is refused.
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/split_pattern.h"

namespace so {
namespace {

constexpr std::array known_properties = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "N",  "Nd", "Nl",
                                         "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",
                                         "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == ')') {
        close_group();
        continue;
      }
      if (c != '{' && c != '*' && c != '+' && c != '?') atom_ = out_.size();
      switch (c) {
        case '\\':
          escape();
          break;
        case '(':
          group();
          break;
        case '[':
          set();
          break;
        case '{':
          count();
          break;
        case '^':
          refuse("^", "anchors lines in one engine and the text in the other");
        case '$':
          out_ += "(?=\\n|\\z)";
          ++at_;
          break;
        case '*':
        case '+':
        case '?':
          take(1);
          break;
        default:
          literal();
          break;
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view construct, std::string_view why) const {
    fail("{}: the split pattern has '{}' at byte {}: {}; this program does not read such patterns", where_, construct,
         at_, why);
  }

  bool follows(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

  void take(std::size_t count) {
    out_.append(pattern_, at_, count);
    at_ += count;
  }

  void literal() {
    const char c = pattern_[at_];
    if (c == ']' || c == '}') refuse(pattern_.substr(at_, 1), "unbalanced, or to be written with a backslash");
    if (c == '\0') refuse("\\0", "a zero byte");
    take(1);
  }

  void escape() {
    if (at_ + 1 == pattern_.size()) refuse("\\", "a backslash at the end");
    const char c = pattern_[at_ + 1];
    switch (c) {
      case 's':
        out_ += "\\p{White_Space}";
        break;
      case 'S':
        out_ += "\\P{White_Space}";
        break;
      case 'd':
        out_ += "\\p{Nd}";
        break;
      case 'D':
        out_ += "\\P{Nd}";
        break;
      case 'r':
      case 'n':
      case 't':
      case 'f':
        out_.append(pattern_, at_, 2);
        break;
      case 'p':
      case 'P':
        property();
        return;
      default:
        if (is_ascii_letter(c) || is_digit(c) || static_cast<unsigned char>(c) >= 0x80 || c < ' ') {
          refuse(pattern_.substr(at_, 2), "an escape without an equal meaning in both engines");
        }
        out_.append(pattern_, at_, 2);
    }
    at_ += 2;
  }

  void property() {
    const std::size_t close = pattern_.find('}', at_);
    if (close == std::string_view::npos || pattern_[at_ + 2] != '{')
      refuse(pattern_.substr(at_, 2), "a property without a name in braces");
    const std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    for (const std::string_view known : known_properties) {
      if (name == known) {
        take(close + 1 - at_);
        return;
      }
    }
    refuse(pattern_.substr(at_, close + 1 - at_), "a property other than the general categories");
  }

  void close_group() {
    take(1);
    if (groups_.empty()) return;  // PCRE2 will complain
    atom_ = groups_.back();
    groups_.pop_back();
  }

  void group() {
    groups_.push_back(out_.size());
    if (!follows("(?")) {
      take(1);
      return;
    }
    if (follows("(?i:")) {
      const std::size_t close = pattern_.find(')', at_);
      for (const char c : pattern_.substr(at_ + 4, close == std::string_view::npos ? close : close - at_ - 4)) {
        if (!is_ascii_letter(c) && c != '\'' && c != '|' && c != '[' && c != ']')
          refuse("(?i:", "ignoring case is read for plain ASCII words and sets of ASCII letters only");
      }
      take(4);
      return;
    }
    for (const std::string_view opening : {"(?:", "(?=", "(?!", "(?>"}) {
      if (follows(opening)) {
        take(opening.size());
        return;
      }
    }
    refuse(pattern_.substr(at_, 4), "a group that is not (?: (?i: (?= (?! or (?>");
  }

  void set() {
    const std::size_t begin = at_;
    take(1);
    if (at_ < pattern_.size() && pattern_[at_] == '^') take(1);
    if (at_ < pattern_.size() && pattern_[at_] == ']') refuse("[]", "an empty set");
    while (at_ < pattern_.size() && pattern_[at_] != ']') {
      if (pattern_[at_] == '\\') {
        escape();
      } else if (pattern_[at_] == '[') {
        refuse("[..[", "a set within a set");
      } else if (follows("&&")) {
        refuse("&&", "an intersection of sets");
      } else {
        take(1);
      }
    }
    if (at_ == pattern_.size()) {
      at_ = begin;
      refuse("[", "a set without an end");
    }
    take(1);
  }

  void count() {
    std::size_t at = at_ + 1;
    const auto digits = [&] {
      const std::size_t begin = at;
      while (at < pattern_.size() && is_digit(pattern_[at])) ++at;
      return at > begin;
    };
    bool valid = digits();
    if (valid && at < pattern_.size() && pattern_[at] == ',') {
      ++at;
      digits();
    }
    valid = valid && at < pattern_.size() && pattern_[at] == '}';
    if (!valid) refuse("{", "a brace that is not a count {n}, {n,} or {n,m}");
    ++at;
    const char mode = at < pattern_.size() ? pattern_[at] : '\0';
    if (mode == '?') refuse(pattern_.substr(at_, at + 1 - at_), "a mode behind a count");
    take(at - at_);
    if (mode != '+') return;
    ++at_;
    out_.insert(atom_, "(?:");
    out_ += ")+";
  }

  std::string_view pattern_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t atom_ = 0;             // where in out_ that begins which a count repeats
  std::vector<std::size_t> groups_;  // where in out_ the groups begin that are still open
};

}  // namespace

std::string translate_pattern(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

}  // namespace so
