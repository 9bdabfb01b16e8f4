#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "data/records.h"
#include "data/tokenizer/utf8.h"

namespace so {
namespace {

bool is_whitespace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_whitespace(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_whitespace(text.back())) text.remove_suffix(1);
  return text;
}

// Whether a line is a few short words with that character between them.
bool are_column_names(std::string_view line, char separator) {
  constexpr std::size_t longest = 40;
  std::size_t names = 0;
  for (std::size_t begin = 0; begin <= line.size(); ++names) {
    const std::size_t end = std::min(line.find(separator, begin), line.size());
    const std::string_view word = line.substr(begin, end - begin);
    if (word.empty() || word.size() > longest || word.front() == ' ') return false;
    begin = end + 1;
  }
  return names > 1;
}

// What a file is that does not begin as JSON, and how it becomes JSON.
std::string what_it_is(std::string_view name, std::string_view content) {
  static constexpr std::pair<std::string_view, std::string_view> known[] = {
      {"\x1f\x8b", "is compressed with gzip; unpack it with gunzip"},
      {"\x28\xb5\x2f\xfd", "is compressed with zstd; unpack it with unzstd"},
      {"\xfd"
       "7zXZ",
       "is compressed with xz; unpack it with unxz"},
      {"PK\x03\x04", "is a zip archive; unpack it with unzip"},
      {"PAR1", "is Parquet; give it a name that ends in .parquet"},
      {"ARROW1", "is Arrow; give it a name that ends in .arrow"},
      {"\xff\xfe", "is UTF-16; convert it with iconv -f UTF-16 -t UTF-8"},
      {"\xfe\xff", "is UTF-16; convert it with iconv -f UTF-16 -t UTF-8"}};
  for (const auto& [begin, what] : known)
    if (content.starts_with(begin)) return std::string(what);
  const std::string_view line = trim(content.substr(0, std::min(content.find('\n'), std::size_t{4096})));
  const bool tabs = name.ends_with(".tsv") || are_column_names(line, '\t');
  constexpr std::string_view wanted = "a data file is UTF-8 JSON: one record {...} a line (JSONL) or one array [...]";
  if (tabs || name.ends_with(".csv") || are_column_names(line, ','))
    return fmt::format(
        "is a table with {} between its columns ({}); {}; convert it: python3 -c 'import csv, json, sys; "
        "[print(json.dumps(r)) for r in csv.DictReader(sys.stdin{})]' < {} > converted.jsonl",
        tabs ? "tabs" : "commas", tabs ? "TSV" : "CSV", wanted, tabs ? ", delimiter=\"\\t\"" : "", name);
  const char first = content.front();
  return fmt::format("begins with {}; {}",
                     first > ' ' && first < 0x7f ? fmt::format("'{}'", first)
                                                 : fmt::format("byte 0x{:02x}", static_cast<unsigned char>(first)),
                     wanted);
}

}  // namespace

std::string location_of(std::string_view file_name, const RawRecord& record) {
  if (record.row >= 0) return fmt::format("{}: row {}", file_name, record.row);
  if (record.element < 0) return fmt::format("{}:{}", file_name, record.line);
  return fmt::format("{}:{} (element {})", file_name, record.line, record.element);
}

RecordReader::RecordReader(std::string name, std::string_view content) : name_(std::move(name)), content_(content) {
  offset_ = content_.size() - without_mark(content_).size();
  skip_whitespace();
  if (offset_ == content_.size()) return;
  const char first = content_[offset_];
  array_ = first == '[';
  if (array_) {
    ++offset_;
    return;
  }
  if (first != '{') fail("{}:{}: {}", name_, line_, what_it_is(name_, content_.substr(offset_)));
}

bool RecordReader::next(RawRecord& record) {
  if (!(array_ ? next_element(record) : next_line(record))) return false;
  return true;
}

void RecordReader::require_not_longer(std::size_t bytes, const RawRecord& record) const {
  if (bytes > kMaxRecordBytes)
    fail("{}: the record has more than {} bytes; split it", location_of(name_, record), kMaxRecordBytes);
}

void RecordReader::skip_whitespace() {
  for (; offset_ < content_.size() && is_whitespace(content_[offset_]); ++offset_) line_ += content_[offset_] == '\n';
}

bool RecordReader::next_line(RawRecord& record) {
  while (offset_ < content_.size()) {
    // The search ends where a record would be too long, so that a file of terabytes without a line end is refused soon.
    const std::size_t length =
        std::min(content_.substr(offset_, kMaxRecordBytes + 1).find('\n'), content_.size() - offset_);
    record = {{}, line_};
    require_not_longer(length, record);
    const std::size_t end = offset_ + length;
    const std::string_view line = content_.substr(offset_, length);
    record.json = trim(line);
    offset_ += line.size();
    if (end < content_.size()) {
      ++offset_;
      ++line_;
    }
    if (!record.json.empty()) return true;
  }
  return false;
}

// Looks at strings, brackets and commas only, which delimit an element. The parser judges the rest.
bool RecordReader::next_element(RawRecord& record) {
  if (closed_) return false;
  skip_whitespace();
  const std::size_t begin = offset_;
  record = {{}, line_, element_};
  std::int64_t depth = 0;
  for (bool in_string = false; offset_ < content_.size(); ++offset_) {
    const char c = content_[offset_];
    if (c == '\n') ++line_;
    require_not_longer(offset_ - begin, record);
    if (in_string) {
      if (c == '"') in_string = false;
      // The escaped character cannot end the string; a line end there is invalid JSON but must still be counted.
      if (c == '\\' && offset_ + 1 < content_.size() && content_[offset_ + 1] != '\n') ++offset_;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || (c == ']' && depth > 0)) {
      --depth;
    } else if ((c == ',' && depth <= 0) || c == ']') {
      record.json = trim(content_.substr(begin, offset_ - begin));
      ++offset_;
      ++element_;
      if (c == ',') return true;  // an empty element is refused by the parser
      closed_ = true;
      const std::int64_t line = line_;
      skip_whitespace();
      if (offset_ < content_.size())
        fail("{}:{}: there is text after the array, which closes on line {}; remove it, or write one record a line",
             name_, line_, line);
      if (record.json.empty() && record.element > 0) fail("{}:{}: the array ends in a comma; remove it", name_, line);
      return !record.json.empty();
    }
  }
  fail("{}: the file ends before the array does; is it cut off?", location_of(name_, record));
}

}  // namespace so
