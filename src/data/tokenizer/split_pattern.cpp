#include "data/tokenizer/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "data/tokenizer/unicode.h"
#include "data/tokenizer/utf8.h"

namespace so {
namespace {

// PCRE2 10.42 knows Unicode 14, Oniguruma Unicode 16. A newer character is therefore shown to PCRE2 as an older one of
// the same category and length. Gives the character itself where it is old, or where no older one is like it.
class StandIns {
 public:
  static const StandIns& get() {
    static const StandIns table;
    return table;
  }
  std::uint32_t operator()(CodePoint c) const {
    const UnicodeTable& unicode = UnicodeTable::get();
    if (c.length < 3 || unicode.in_unicode_14(c.value)) return c.value;
    const std::uint32_t other = of_[c.length - 3][static_cast<std::size_t>(unicode.category(c.value))];
    return other != 0 ? other : c.value;
  }

 private:
  StandIns() {
    const UnicodeTable& unicode = UnicodeTable::get();
    for (std::uint32_t c = 0x10FFFF; c >= 0x800; --c) {  // the lowest stays
      const Category category = unicode.category(c);
      if (unicode.in_unicode_9(c) && category != Category::Cs)
        of_[c < 0x10000 ? 0 : 1][static_cast<std::size_t>(category)] = c;
    }
    // Noncharacters will never be assigned.
    of_[0][static_cast<std::size_t>(Category::Cn)] = 0xFFFE;
    of_[1][static_cast<std::size_t>(Category::Cn)] = 0x1FFFE;
  }
  std::array<std::array<std::uint32_t, 30>, 2> of_{};  // [3 or 4 bytes][category]
};

constexpr std::size_t longest_pattern = 4096;
constexpr std::size_t jit_stack = 1 << 20;

}  // namespace

struct SplitPattern::Code {
  explicit Code(pcre2_code* compiled) : code(compiled) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  pcre2_code* code;
  std::string where;
  bool uses_stand_ins = true;
};

struct SplitPattern::Scratch::Pcre2 {
  explicit Pcre2(const pcre2_code* code)
      : match(pcre2_match_data_create_from_pattern(code, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(32 * 1024, jit_stack, nullptr)) {
    if (match == nullptr || context == nullptr || stack == nullptr) throw std::bad_alloc();
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Pcre2() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  Pcre2(const Pcre2&) = delete;
  Pcre2& operator=(const Pcre2&) = delete;

  pcre2_match_data* match;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

SplitPattern::Scratch::Scratch() = default;
SplitPattern::Scratch::~Scratch() = default;
SplitPattern::Scratch::Scratch(Scratch&&) noexcept = default;
SplitPattern::Scratch& SplitPattern::Scratch::operator=(Scratch&&) noexcept = default;

SplitPattern::SplitPattern(std::shared_ptr<const Code> code) : code_(std::move(code)) {}

namespace {

pcre2_code* compile(std::string_view pattern, std::uint32_t options, const std::string& where) {
  if (pattern.empty()) fail("{}: the split pattern is empty", where);
  if (pattern.size() > longest_pattern)
    fail("{}: the split pattern has {} bytes, {} at most are read", where, pattern.size(), longest_pattern);
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);  // what "." does not match, as in Oniguruma
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options | PCRE2_UTF,
                                   &error, &at, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    fail("{}: the split pattern is not a regular expression: {} (at byte {} of \"{}\")", where,
         reinterpret_cast<const char*>(message.data()), at, pattern);
  }
  // Where there is no just-in-time compiler the interpreter does the same work, slower.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return code;
}

}  // namespace

SplitPattern SplitPattern::regex(std::string_view pattern, const std::string& where) {
  if (pattern.size() > longest_pattern)
    fail("{}: the split pattern has {} bytes, {} at most are read", where, pattern.size(), longest_pattern);
  auto code = std::make_shared<Code>(compile(translate_pattern(pattern, where), PCRE2_UCP, where));
  std::uint32_t can_be_empty = 0;
  pcre2_pattern_info(code->code, PCRE2_INFO_MATCHEMPTY, &can_be_empty);
  if (can_be_empty != 0)
    fail("{}: the split pattern can match nothing at all; such patterns are not read: \"{}\"", where, pattern);
  code->where = where;
  // A stand-in must not meet a character that the pattern names.
  code->uses_stand_ins =
      std::all_of(pattern.begin(), pattern.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  return SplitPattern(std::move(code));
}

SplitPattern SplitPattern::literal(std::string_view text, const std::string& where) {
  auto code = std::make_shared<Code>(compile(text, PCRE2_LITERAL, where));
  code->where = where;
  code->uses_stand_ins = false;
  return SplitPattern(std::move(code));
}

void SplitPattern::start(std::string_view text, Scratch& scratch) const {
  if (scratch.pcre2_ == nullptr) scratch.pcre2_ = std::make_unique<Scratch::Pcre2>(code_->code);
  scratch.text_ = text;
  if (!code_->uses_stand_ins) return;
  const StandIns& stand_ins = StandIns::get();
  bool replaced = false;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (const std::uint32_t other = stand_ins(c); other != c.value) {
      if (!replaced) scratch.stand_in_ = text;
      replaced = true;
      std::string bytes;
      append_utf8(bytes, other);
      scratch.stand_in_.replace(at, c.length, bytes);
    }
    at += c.length;
  }
  if (replaced) scratch.text_ = scratch.stand_in_;
}

bool SplitPattern::next(std::size_t from, Scratch& scratch, Match& match) const {
  Scratch::Pcre2& pcre2 = *scratch.pcre2_;
  const auto search = [&](std::uint32_t options) {
    return pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(scratch.text_.data()), scratch.text_.size(), from,
                       options | PCRE2_NO_UTF_CHECK, pcre2.match, pcre2.context);
  };
  int result = search(0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT)
    result = search(PCRE2_NO_JIT);  // the interpreter keeps its state on the heap
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(result, message.data(), message.size());
    fail("{}: the split pattern cannot split a text of {} bytes: {}", code_->where, scratch.text_.size(),
         reinterpret_cast<const char*>(message.data()));
  }
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(pcre2.match);
  match = {bounds[0], bounds[1]};
  SO_CHECK(match.begin >= from && match.end > match.begin, "match {}..{}", match.begin, match.end);
  return true;
}

}  // namespace so
