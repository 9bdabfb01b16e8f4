// What each key of a record, and of a message, means: the closed tables. For .cpp files only.
//
// A key is honoured, or it is harmless, or its value is refused where it would change what is trained, or it is not
// known. A value that says nothing (null, "", [], {}) is as none. What is neither honoured nor refused is counted
// (record_notes.h), so that the log names it.
#pragma once

#include <simdjson.h>

#include <optional>
#include <string_view>
#include <vector>

#include "data/record_notes.h"
#include "data/records.h"

namespace so {

// "a number", "an array" and so on, for messages.
std::string_view type_of(const simdjson::dom::element& value);

// Null, "", [] or {}.
bool says_nothing(const simdjson::dom::element& value);

// A number, or a boolean as 0 or 1.
std::optional<double> number_of(const simdjson::dom::element& value);

// The keys beside those that make a record of which a table's columns are read: all that are honoured or refused.
std::vector<std::string_view> keys_with_meaning();

// Throws Error, without a location, for a key that means something which is not done.
void check_record_keys(const simdjson::dom::object& record, RecordFormat format, RecordNotes& notes);
void check_message_keys(const simdjson::dom::object& message, RecordNotes& notes);

}  // namespace so
