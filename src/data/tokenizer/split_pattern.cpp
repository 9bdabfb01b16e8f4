#include "data/tokenizer/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <time.h>

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
constexpr std::uint32_t most_heap_kib = 512 << 10;  // of the interpreter; PCRE2's own limit is 20 GB
// Where a pattern looks far ahead from every place, a search that finds nothing takes time that is quadratic in the
// text. So a call tries few places, and twice as many as the one before if that was quick.
constexpr std::size_t places_at_first = 256;
constexpr double quick_seconds = 5e-3;
// Of searches in all texts together: patterns of published tokenizers need 0.02 s for a megabyte, or 0.5 s without the
// just-in-time compiler.
constexpr double first_seconds = 0.5, seconds_of_byte = 2e-6;

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// How long searches have taken. A process may be stopped or wait for a core, so what counts in the end is the thread's
// own time; asking for that is slow, and only begins where the other clock says that too much has passed.
class SearchTime {
 public:
  void start(std::size_t text_bytes) {
    bytes_ += static_cast<double>(text_bytes);
    searches_ = 0;
    since_ = seconds_of(clock_);
  }
  // After each search. Now and then it looks at the clock.
  void searched() {
    ++searches_;
    if ((searches_ & (searches_ - 1)) == 0 || searches_ % 16 == 0) look();
  }
  // Returns the seconds since it last looked.
  double look() {
    const double now = seconds_of(clock_), passed = now - std::exchange(since_, now);
    spent_ += passed;
    return passed;
  }
  bool too_long() {
    if (spent_ <= first_seconds + seconds_of_byte * bytes_) return false;
    if (clock_ == CLOCK_THREAD_CPUTIME_ID) return true;
    clock_ = CLOCK_THREAD_CPUTIME_ID;
    since_ = seconds_of(clock_);
    spent_ = bytes_ = 0;
    return false;
  }

 private:
  clockid_t clock_ = CLOCK_MONOTONIC;
  std::uint64_t searches_ = 0;  // in this text
  double since_ = 0, spent_ = 0, bytes_ = 0;
};

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0u) == 0x80u; }

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
    pcre2_set_heap_limit(context, most_heap_kib);
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
  SearchTime time;
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
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   options | PCRE2_UTF | PCRE2_USE_OFFSET_LIMIT, &error, &at, context);
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
  scratch.pcre2_->time.start(text.size());
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
  const std::string_view text = scratch.text_;
  int result = PCRE2_ERROR_NOMATCH;
  const auto search = [&](std::size_t at, std::uint32_t options) {
    result = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                         options | PCRE2_NO_UTF_CHECK, pcre2.match, pcre2.context);
  };
  std::size_t places = places_at_first;
  for (std::size_t at = from;;) {
    pcre2_set_offset_limit(pcre2.context, at + places);
    search(at, 0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) search(at, PCRE2_NO_JIT);  // the interpreter keeps its state on the heap
    pcre2.time.searched();
    if (result != PCRE2_ERROR_NOMATCH) break;
    const bool quick = pcre2.time.look() < quick_seconds;
    if (pcre2.time.too_long()) break;
    at += places + 1;
    while (at < text.size() && is_continuation(text[at])) ++at;
    if (at >= text.size()) return false;
    if (quick) places *= 2;
  }
  if (pcre2.time.too_long())
    fail(
        "{}: the split pattern takes far longer to search a text of {} bytes than patterns do; this program does not "
        "read such patterns",
        code_->where, text.size());
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
