#include "base/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "base/character.h"

namespace so {
namespace {

constexpr std::size_t fewest_columns = 20, usual_columns = 80, most_columns = 10000;

using Interval = std::pair<std::uint32_t, std::uint32_t>;

template <std::size_t N>
bool in_any(const Interval (&intervals)[N], std::uint32_t code) {
  return std::any_of(std::begin(intervals), std::end(intervals),
                     [&](const Interval& i) { return code >= i.first && code <= i.second; });
}

std::size_t width_of(const Character& c) {
  static constexpr Interval none[] = {{0x300, 0x36F},   {0x483, 0x489},   {0x591, 0x5BD},   {0x610, 0x61A},
                                      {0x64B, 0x65F},   {0x1AB0, 0x1AFF}, {0x1DC0, 0x1DFF}, {0x200B, 0x200F},
                                      {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}, {0xE0100, 0xE01EF}};
  static constexpr Interval wide[] = {{0x1100, 0x115F},   {0x2E80, 0x303E},   {0x3041, 0xA4CF},   {0xA960, 0xA97F},
                                      {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},   {0xFF00, 0xFF60},
                                      {0xFFE0, 0xFFE6},   {0x1F300, 0x1F64F}, {0x1F680, 0x1F6FF}, {0x1F900, 0x1F9FF},
                                      {0x1FA70, 0x1FAFF}, {0x20000, 0x3FFFD}};
  if (!c.valid) return 1;
  if (in_any(none, c.code)) return 0;
  return in_any(wide, c.code) ? 2 : 1;
}

// Where the word at `begin` ends. A number and its unit are one: "52.2 MB".
std::size_t end_of_word(std::string_view line, std::size_t begin) {
  static constexpr std::string_view units[] = {"B", "kB", "MB", "GB", "TB", "s", "tok/s"};
  const std::size_t end = std::min(line.find(' ', begin), line.size());
  if (end == begin || end == line.size() || line[end - 1] < '0' || line[end - 1] > '9') return end;
  const std::size_t next_end = std::min(line.find(' ', end + 1), line.size());
  std::string_view next = line.substr(end + 1, next_end - end - 1);
  while (!next.empty() && std::string_view(",;.:)").find(next.back()) != std::string_view::npos) next.remove_suffix(1);
  return std::find(std::begin(units), std::end(units), next) == std::end(units) ? end : next_end;
}

void append_wrapped_line(std::string& out, std::string_view line, std::size_t columns) {
  if (columns_of(line) <= columns) {
    out += line;
    return;
  }
  const std::size_t own = std::min(line.find_first_not_of(' '), line.size());
  const std::string indent(std::min(own + 2, columns / 2), ' ');
  std::size_t used = own;
  out.append(own, ' ');
  bool first = true;
  for (std::size_t begin = own; begin < line.size();) {
    const std::size_t gap = std::min(line.find_first_not_of(' ', begin), line.size());
    const std::size_t end = end_of_word(line, gap);
    const std::string_view word = line.substr(gap, end - gap);
    const std::size_t wide = columns_of(word);
    if (word.empty()) break;
    if (!first && used + (gap - begin) + wide > columns) {
      out += '\n' + indent;
      used = indent.size();
    } else {
      out.append(gap - begin, ' ');
      used += gap - begin;
    }
    out += word;
    used += wide;
    first = false;
    begin = end;
  }
}

bool is_terminal(int descriptor) {
  const char* term = std::getenv("TERM");
  return ::isatty(descriptor) == 1 && (term == nullptr || std::string_view(term) != "dumb");
}

std::size_t columns_behind(int descriptor) {
  std::size_t columns = 0;
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0) columns = size.ws_col;
  if (columns == 0) {
    const char* text = std::getenv("COLUMNS");
    const std::string_view given = text == nullptr ? "" : text;
    const auto [stop, error] = std::from_chars(given.data(), given.data() + given.size(), columns);
    if (error != std::errc() || stop != given.data() + given.size()) columns = usual_columns;
  }
  return std::clamp(columns, fewest_columns, most_columns);
}

// The longest part of a word from its beginning that takes at most `columns` and ends behind '|' or ','; all of it
// where there is none.
std::string_view breakable_head(std::string_view word, std::size_t columns) {
  if (columns_of(word) <= columns) return word;
  const std::size_t last = head_of(word, columns).find_last_of("|,");
  return last == std::string_view::npos ? word : word.substr(0, last + 1);
}

void append_filled(std::string& out, std::string_view paragraph, std::size_t room, const std::string& indent) {
  std::size_t used = 0;  // columns of the line; 0: none is begun
  for (std::size_t begin = 0;;) {
    begin = std::min(paragraph.find_first_not_of(' ', begin), paragraph.size());
    const std::size_t end = end_of_word(paragraph, begin);
    if (begin == end) break;
    for (std::string_view word = paragraph.substr(begin, end - begin); !word.empty();) {
      const bool goes_on = used > 0 && used + 1 + columns_of(word) <= room;
      const std::string_view head = goes_on ? word : breakable_head(word, room);
      out += goes_on ? " " : used > 0 ? "\n" + indent : indent;
      out += head;
      used = (goes_on ? used + 1 : 0) + columns_of(head);
      word.remove_prefix(head.size());
    }
    begin = end;
  }
  out += '\n';
}

}  // namespace

bool stderr_is_terminal() { return is_terminal(STDERR_FILENO); }
bool stdout_is_terminal() { return is_terminal(STDOUT_FILENO); }
std::size_t stderr_columns() { return columns_behind(STDERR_FILENO); }
std::size_t stdout_columns() { return columns_behind(STDOUT_FILENO); }

std::size_t columns_of(std::string_view text) {
  std::size_t columns = 0;
  while (!text.empty()) {
    const Character c = first_character(text);
    columns += width_of(c);
    text.remove_prefix(c.bytes);
  }
  return columns;
}

std::size_t utf8_prefix(std::string_view text) {
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const Character c = first_character(text.substr(bytes));
    if (!c.valid) break;
    bytes += c.bytes;
  }
  return bytes;
}

std::string_view head_of(std::string_view text, std::size_t columns) {
  std::size_t bytes = 0;
  for (std::size_t used = 0; bytes < text.size();) {
    const Character c = first_character(text.substr(bytes));
    used += width_of(c);
    if (used > columns) break;
    bytes += c.bytes;
  }
  return text.substr(0, bytes);
}

std::string_view tail_of(std::string_view text, std::size_t columns) {
  std::size_t left = columns_of(text);
  while (left > columns) {
    const Character c = first_character(text);
    left -= width_of(c);
    text.remove_prefix(c.bytes);
  }
  return text;
}

std::string printable_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character c = first_character(text);
    const bool stays = c.code == '\n' || c.code == '\t' || !steers_terminal(c);
    out += stays ? text.substr(0, c.bytes) : "?";
    text.remove_prefix(c.bytes);
  }
  return out;
}

std::string wrapped(std::string_view text, std::size_t columns) {
  std::string out;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (begin > 0) out += '\n';
    append_wrapped_line(out, text.substr(begin, end - begin), columns);
    begin = end + 1;
  }
  return out;
}

std::string filled(std::string_view text, std::size_t columns, std::size_t indent) {
  std::string out;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find("\n\n", begin), text.size());
    std::string paragraph(text.substr(begin, end - begin));
    std::replace(paragraph.begin(), paragraph.end(), '\n', ' ');
    if (begin > 0) out += '\n';
    append_filled(out, paragraph, columns > indent ? columns - indent : 1, std::string(indent, ' '));
    begin = end + 2;
  }
  return out;
}

}  // namespace so
