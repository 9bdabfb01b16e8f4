#include "data/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/unicode.h"
#include "data/tokenizer/utf8.h"

namespace so {
namespace {

constexpr auto nfc_options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
constexpr auto nfd_options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);

// Holds the properties of characters that the quick check of UAX #15, section 9, needs.
class QuickCheck {
 public:
  static const QuickCheck& get() {
    static const QuickCheck table;
    return table;
  }

  // 0 for a starter that is itself in NFC and composes with nothing before it.
  std::uint16_t operator[](std::uint32_t code_point) const {
    return code_point < first || code_point >= last ? 0 : entries_[code_point - first];
  }
  static constexpr std::uint16_t combining_class = 255;  // these bits
  static constexpr std::uint16_t may_change = 256;       // NFC_Quick_Check is No or Maybe

 private:
  static constexpr std::uint32_t first = 0x300;   // below all is inert
  static constexpr std::uint32_t last = 0x30000;  // so is what lies above the compatibility ideographs

  QuickCheck() : entries_(last - first) {
    const UnicodeTable& unicode = UnicodeTable::get();
    for (std::uint32_t c = 0xC0; c < last; ++c) {
      if ((c >= 0xD800 && c <= 0xDFFF) || !unicode.in_unicode_9(c)) continue;
      std::array<utf8proc_int32_t, 8> parts;
      const auto count =
          utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(), parts.size(), nfd_options, nullptr);
      SO_CHECK(count >= 1 && count <= static_cast<utf8proc_ssize_t>(parts.size()), "U+{:04X} decomposes into {}", c,
               count);
      // Maybe: the second part of a composition. The parts of excluded ones are among them, which costs time only.
      for (utf8proc_ssize_t i = 1; i < count; ++i) entry(parts[static_cast<std::size_t>(i)]) |= may_change;
      if (c < first) continue;
      // No: a singleton (the angstrom sign), or one that decomposes and does not compose again.
      const auto composed = utf8proc_normalize_utf32(parts.data(), count, nfc_options);
      if (composed != 1 || parts[0] != static_cast<utf8proc_int32_t>(c))
        entry(static_cast<utf8proc_int32_t>(c)) |= may_change;
      entry(static_cast<utf8proc_int32_t>(c)) |=
          static_cast<std::uint16_t>(utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class);
    }
  }
  std::uint16_t& entry(utf8proc_int32_t code_point) {
    return entries_.at(static_cast<std::uint32_t>(code_point) - first);
  }

  std::vector<std::uint16_t> entries_;
};

constexpr auto nfkd_options = static_cast<utf8proc_option_t>(nfd_options | UTF8PROC_COMPAT);

// utf8proc_map() would do the same, but orders marks in time that is quadratic in their number. The characters must be
// those of Unicode 9.
void append_normal(std::string& out, std::string_view text, utf8proc_option_t decomposition, bool compose) {
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    at += c.length;
    std::array<utf8proc_int32_t, 32> parts;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.value), parts.data(), parts.size(),
                                               decomposition, nullptr);
    SO_CHECK(count >= 1 && count <= static_cast<utf8proc_ssize_t>(parts.size()), "U+{:04X} decomposes into {}", c.value,
             count);
    points.insert(points.end(), parts.begin(), parts.begin() + count);
  }
  const auto combining_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  const auto is_starter = [&](utf8proc_int32_t c) { return combining_class(c) == 0; };
  for (auto first = points.begin(); first != points.end();) {  // marks between two starters, by class
    first = std::find_if_not(first, points.end(), is_starter);
    const auto last = std::find_if(first, points.end(), is_starter);
    std::stable_sort(first, last,
                     [&](utf8proc_int32_t a, utf8proc_int32_t b) { return combining_class(a) < combining_class(b); });
    first = last;
  }
  auto count = static_cast<utf8proc_ssize_t>(points.size());
  if (compose) count = utf8proc_normalize_utf32(points.data(), count, nfc_options);
  SO_CHECK(count >= 0, "composing {} characters: {}", points.size(), utf8proc_errmsg(count));
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    append_utf8(out, static_cast<std::uint32_t>(points[static_cast<std::size_t>(i)]));
}

}  // namespace

std::string_view to_nfc(std::string_view text, std::string& storage) {
  const QuickCheck& quick_check = QuickCheck::get();
  storage.clear();
  std::size_t copied = 0;   // text[0, copied) is in storage, normalized
  std::size_t starter = 0;  // the inert character before `at`, or `at` itself if there is none
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      starter = at++;
      continue;
    }
    const CodePoint c = code_point_at(text, at);
    if (quick_check[c.value] == 0) {
      starter = at;
      at += c.length;
      continue;
    }
    // A run up to the next inert character. It may change together with the starter before it.
    std::size_t end = at;
    bool changes = false;
    for (std::uint16_t before = 0; end < text.size();) {
      const CodePoint next = code_point_at(text, end);
      const std::uint16_t entry = quick_check[next.value];
      if (entry == 0) break;
      const std::uint16_t order = entry & QuickCheck::combining_class;
      changes = changes || entry & QuickCheck::may_change || (order != 0 && order < before);
      before = order;
      end += next.length;
    }
    if (changes) {
      const bool composes = starter < at && UnicodeTable::get().in_unicode_9(code_point_at(text, starter).value);
      const std::size_t begin = composes ? starter : at;
      storage.append(text, copied, begin - copied);
      append_normal(storage, text.substr(begin, end - begin), nfd_options, true);
      copied = end;
    }
    starter = end;
    at = end;
  }
  if (copied == 0) return text;
  storage.append(text, copied);
  return storage;
}

std::string_view to_normal_form(std::string_view text, NormalForm form, std::string& storage) {
  if (form == NormalForm::nfc) return to_nfc(text, storage);
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) return text;
  const bool compatibility = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const UnicodeTable& unicode = UnicodeTable::get();
  storage.clear();
  std::size_t begin = 0;  // of a run of characters that Unicode 9 has
  for (std::size_t at = 0; at <= text.size();) {
    const CodePoint c = at < text.size() ? code_point_at(text, at) : CodePoint{0, 1};
    if (at == text.size() || !unicode.in_unicode_9(c.value)) {
      append_normal(storage, text.substr(begin, at - begin), compatibility ? nfkd_options : nfd_options,
                    form == NormalForm::nfkc);
      begin = std::min(at + c.length, text.size());
      storage.append(text, at, begin - at);
    }
    at += c.length;
  }
  return storage;
}

}  // namespace so
