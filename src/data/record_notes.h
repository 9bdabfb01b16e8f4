// What a file's records hold that their examples do not show, counted for the log.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace so {

enum class NoteKind : std::uint8_t {
  harmless_key,    // of records: known, and without a meaning for training
  unknown_key,     // of records
  message_key,     // of messages: handed to the chat template, and without a meaning for this program
  unread_column,   // of a table, which is not read
  left_out,        // by the chat template
  role_read_as,    // a role by another name
  packed_row,      // a record of several documents that another program packed
  begins_already,  // a text that begins with the tokenizer's first tokens, which were not put before it again
  ends_already,    // a text that ends with the end token, which was not put behind it again
  ends_twice,      // a conversation in which the template puts an end token behind another one
};

// Counts by kind and name. What it holds, and so what a cache holds, does not depend on the order of add().
class RecordNotes {
 public:
  // Of the record at hand: a name counts once, however often it is added before end_record().
  void note(NoteKind kind, std::string_view name = {});
  void end_record();

  void add(const RecordNotes& other);
  // Hostile files have a new name in each record: of the kinds that have many, those counted most are kept, and the
  // others are counted together under the name "".
  void keep_most_counted();

  bool empty() const { return counts_.empty(); }
  std::int64_t count(NoteKind kind, std::string_view name = {}) const;
  // Of this kind, those counted most first.
  std::vector<std::pair<std::string, std::int64_t>> of(NoteKind kind) const;

  // At most most_text bytes, in lines; the notes that do not fit are left out. parse() takes any text.
  static constexpr std::size_t most_text = 3500;
  std::string text() const;
  static RecordNotes parse(std::string_view text);

  bool operator==(const RecordNotes&) const = default;

 private:
  std::map<std::pair<NoteKind, std::string>, std::int64_t> counts_;
  std::vector<std::pair<NoteKind, std::string>> of_record_;
};

}  // namespace so
