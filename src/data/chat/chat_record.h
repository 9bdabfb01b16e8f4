// Checks what a record of a conversation must be. For .cpp files only.
#pragma once

#include <simdjson.h>

#include <optional>
#include <string>
#include <string_view>

#include "data/record_notes.h"

namespace so {

// Throws Error, without a location, unless `messages` is a list of messages that templates can be given: OpenAI's
// (role, content, tool_calls) or ShareGPT's (from, value). `key` is the list's name.
void check_messages(const simdjson::dom::element& messages, std::string_view key, RecordNotes& notes);

// Throws Error unless `tools` is null, a list of objects, or a text of JSON that is one.
void check_tools(const simdjson::dom::element& tools);

// For a record of none of the known kinds: how to convert it, as "; convert it: COMMAND"; empty where nothing is known.
std::string conversion_hint(const simdjson::dom::object& record, std::string_view file_name, bool in_array);

}  // namespace so
