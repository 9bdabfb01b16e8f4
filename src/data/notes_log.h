// Notes of records (record_notes.h): how they come about, and what the log says of them.
#pragma once

#include <optional>
#include <string>

#include "data/chat/chat_renderer.h"
#include "data/example.h"
#include "data/record_notes.h"

namespace so {

void note_example(const Example& example, RecordNotes& notes);
void note_rendered(const RenderedChat& rendered, RecordNotes& notes);

// A line for each kind of note. `what`: whose records they are. `chat`: the template of conversations.
void log_notes(const std::string& what, const RecordNotes& notes, const std::optional<ChatTemplate>& chat);

}  // namespace so
