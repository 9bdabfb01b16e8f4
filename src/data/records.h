// Training data files: their formats, and reading them record by record.
//
// A file is UTF-8 and holds either one JSON object a line (JSONL) or one JSON array of objects; its first character
// tells which, whatever its name ends in. These kinds of record are known, and a file holds one kind only:
//   Alpaca      {"instruction": "...", "input": "...", "output": "..."}   `input` may be absent, null or empty
//   text        {"text": "..."}
//   token ids   {"input_ids": [...], "labels": [...]}                      `labels` may be absent: then input_ids
//   prompt      {"prompt": "...", "completion": "..."}
//   chat        {"messages": [{"role": "user", "content": "..."}, ...]}, with "tools" and "documents" for the template
//               {"conversations": [{"from": "human", "value": "..."}, ...]}, with a "system" text
//               {"prompt": [messages], "completion": [messages]}
// A record with keys of several kinds is the kind whose key comes first in: input_ids, messages, conversations,
// instruction, prompt, text (published data sets carry the rendered text beside its parts). Every other key is
// honoured, refused or counted (record_keys.h). Of a key that occurs twice the last counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/record_notes.h"

namespace so {

// Labels and targets with this value are not trained (the convention of torch's cross_entropy and of transformers).
inline constexpr std::int32_t kIgnored = -100;

struct AlpacaRecord {
  std::string instruction, input, output;
};
struct TextRecord {
  std::string text;
};
struct TokenRecord {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> labels;  // as many as ids, aligned with them (not shifted); kIgnored where not trained
  std::vector<std::int64_t> ends;    // of the documents that another program packed; at most one: it is one document
};
struct PromptRecord {
  std::string prompt, completion;
};
struct ChatRecord {
  std::string_view json;  // of the whole record, checked, a view of what was parsed
};
using Record = std::variant<AlpacaRecord, TextRecord, TokenRecord, PromptRecord, ChatRecord>;

enum class RecordFormat { alpaca, text, token_ids, prompt, chat };
RecordFormat format_of(const Record& record);
std::string_view name_of(RecordFormat format);  // "Alpaca", "text", "token id", "prompt", "chat"

// The JSON text of one record, a view of the file's content, not yet parsed.
struct RawRecord {
  std::string_view json;
  std::int64_t line = 0;      // where it begins, from 1
  std::int64_t element = -1;  // its index in the array, from 0; -1 in JSONL
  std::int64_t row = -1;      // its index in a table, from 0; -1 in JSON, which alone has lines and elements
};

// "FILE:LINE", for an array "FILE:LINE (element 3)", for a table "FILE: row 3".
std::string location_of(std::string_view file_name, const RawRecord& record);

// Cuts a file's content into records without parsing them: one pass, memory independent of the file's size. Accepts a
// UTF-8 byte order mark, CRLF line ends and blank lines. Views `content`, which must outlive it. One thread at a time.
class RecordReader {
 public:
  // Throws Error if the content begins like neither form. `name` is what messages call the file.
  RecordReader(std::string name, std::string_view content);

  // Sets `record` to the next one and returns true; false at the end. Throws Error ("FILE:LINE: what and the fix") for
  // an array that is not closed or has something after it, and for a record above kMaxRecordBytes.
  bool next(RawRecord& record);

  std::size_t offset() const { return offset_; }  // bytes consumed so far

  static constexpr std::size_t kMaxRecordBytes = std::size_t{256} << 20;

 private:
  bool next_line(RawRecord& record);
  bool next_element(RawRecord& record);
  void skip_whitespace();
  void require_not_longer(std::size_t bytes, const RawRecord& record) const;

  std::string name_;
  std::string_view content_;
  std::size_t offset_ = 0;
  std::int64_t line_ = 1;
  std::int64_t element_ = 0;
  bool array_ = false;
  bool closed_ = false;  // the array's closing bracket has been read
};

// Parses one record after another, keeping its buffers. One thread at a time; records do not depend on each other.
class RecordParser {
 public:
  // Token ids and labels must be in [0, vocabulary_size) (labels may be kIgnored).
  RecordParser(std::string file_name, std::int32_t vocabulary_size);
  ~RecordParser();

  // Throws Error "FILE:LINE: what and the fix" for anything but a record of one of these kinds: not JSON, not an
  // object, not UTF-8, a NUL character, a missing key, a value of the wrong type, an id outside the vocabulary, a key
  // that means something which is not done.
  Record parse(const RawRecord& raw);

  // Of all records parsed so far.
  const RecordNotes& notes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace so
