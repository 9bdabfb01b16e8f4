#include "data/record_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/file.h"

namespace so {
namespace {

constexpr std::size_t most_names = 24;  // of a kind
constexpr std::size_t most_name_bytes = 40;
constexpr NoteKind last_kind = NoteKind::ends_twice;

}  // namespace

void RecordNotes::note(NoteKind kind, std::string_view name) {
  std::pair<NoteKind, std::string> key(kind, name.empty() ? std::string() : printable(name, most_name_bytes));
  if (std::find(of_record_.begin(), of_record_.end(), key) == of_record_.end()) of_record_.push_back(std::move(key));
}

void RecordNotes::end_record() {
  for (auto& key : of_record_) ++counts_[std::move(key)];
  of_record_.clear();
}

void RecordNotes::add(const RecordNotes& other) {
  for (const auto& [key, count] : other.counts_) counts_[key] += count;
}

void RecordNotes::keep_most_counted() {
  for (int kind = 0; kind <= static_cast<int>(last_kind); ++kind) {
    const auto names = of(static_cast<NoteKind>(kind));
    for (std::size_t i = most_names; i < names.size(); ++i) {
      if (names[i].first.empty()) continue;
      counts_.erase({static_cast<NoteKind>(kind), names[i].first});
      counts_[{static_cast<NoteKind>(kind), std::string()}] += names[i].second;
    }
  }
}

std::int64_t RecordNotes::count(NoteKind kind, std::string_view name) const {
  const auto found = counts_.find({kind, std::string(name)});
  return found == counts_.end() ? 0 : found->second;
}

std::vector<std::pair<std::string, std::int64_t>> RecordNotes::of(NoteKind kind) const {
  std::vector<std::pair<std::string, std::int64_t>> found;
  for (const auto& [key, count] : counts_)
    if (key.first == kind) found.emplace_back(key.second, count);
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return found;
}

std::string RecordNotes::text() const {
  std::string text;
  for (int kind = static_cast<int>(last_kind); kind >= 0; --kind)  // those of which there are few first
    for (const auto& [name, count] : of(static_cast<NoteKind>(kind))) {
      const std::string line = fmt::format("{} {} {}\n", kind, count, name);
      if (text.size() + line.size() <= most_text) text += line;
    }
  return text;
}

RecordNotes RecordNotes::parse(std::string_view text) {
  RecordNotes notes;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const char *at = text.data() + begin, *const line_end = text.data() + end;
    begin = end + 1;
    int kind = -1;
    std::int64_t count = 0;
    auto read = std::from_chars(at, line_end, kind);
    if (read.ec != std::errc() || read.ptr == line_end || kind < 0 || kind > static_cast<int>(last_kind)) continue;
    read = std::from_chars(read.ptr + 1, line_end, count);
    if (read.ec != std::errc() || read.ptr == line_end || count < 1) continue;
    const std::string_view name(read.ptr + 1, static_cast<std::size_t>(line_end - read.ptr - 1));
    notes.counts_[{static_cast<NoteKind>(kind), name.empty() ? std::string() : printable(name)}] = count;
  }
  return notes;
}

}  // namespace so
