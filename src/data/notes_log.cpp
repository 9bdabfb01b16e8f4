#include "data/notes_log.h"

#include <fmt/ranges.h>

#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"

namespace so {
namespace {

std::string records(std::int64_t count) { return fmt::format("{} record{}", count, count == 1 ? "" : "s"); }

// "id" (3 records), "source" (1 record), others (2). Empty where there are none.
std::string listed(const std::vector<std::pair<std::string, std::int64_t>>& counts) {
  std::vector<std::string> names;
  std::string others;
  for (const auto& [name, count] : counts) {
    if (name.empty())
      others = fmt::format("others ({})", count);
    else
      names.push_back(fmt::format("\"{}\" ({})", name, records(count)));
  }
  if (!others.empty()) names.push_back(others);
  return fmt::format("{}", fmt::join(names, ", "));
}

// What a template spells it may use: it is given all of a message.
std::string unused_by(const std::optional<ChatTemplate>& chat, const RecordNotes& notes) {
  auto counts = notes.of(NoteKind::message_key);
  std::erase_if(counts, [&](const auto& key) {
    const std::string& name = key.first;
    return chat && !name.empty() &&
           (chat->text.find(name) != std::string::npos ||
            (chat->tool_text && chat->tool_text->find(name) != std::string::npos));
  });
  return listed(counts);
}

}  // namespace

void note_example(const Example& example, RecordNotes& notes) {
  if (example.begins_already) notes.note(NoteKind::begins_already);
  if (example.ends_already) notes.note(NoteKind::ends_already);
  if (example.ends_twice) notes.note(NoteKind::ends_twice);
  notes.end_record();
}

void note_rendered(const RenderedChat& rendered, RecordNotes& notes) {
  for (const std::string& part : rendered.left_out) notes.note(NoteKind::left_out, part);
  for (const std::string& role : rendered.roles) notes.note(NoteKind::role_read_as, role);
  notes.end_record();
}

void log_notes(const std::string& what, const RecordNotes& notes, const std::optional<ChatTemplate>& chat) {
  const auto list = [&](std::string_view text, const std::string& names) {
    if (!names.empty()) log_info("{}: {}: {}", what, text, names);
  };
  list("keys that change nothing", listed(notes.of(NoteKind::harmless_key)));
  list("keys that are not known and not used", listed(notes.of(NoteKind::unknown_key)));
  list("keys of messages that the chat template does not use", unused_by(chat, notes));
  std::vector<std::string> columns;
  for (const auto& column : notes.of(NoteKind::unread_column))
    columns.push_back(column.first.empty() ? fmt::format("{} others", column.second)
                                           : fmt::format("\"{}\"", column.first));
  if (!columns.empty()) log_info("{}: columns that are not used: {}", what, fmt::join(columns, ", "));
  list("roles by other names", listed(notes.of(NoteKind::role_read_as)));
  if (const auto count = notes.count(NoteKind::packed_row))
    log_info("{}: {} hold several documents, which are kept apart", what, records(count));
  if (const auto count = notes.count(NoteKind::begins_already))
    log_info("{}: {} begin with the tokenizer's first token already, which is not put before them again", what,
             records(count));
  if (const auto count = notes.count(NoteKind::ends_already))
    log_info("{}: {} end with the end token already, which is not put behind them again", what, records(count));
  for (const auto& [part, count] : notes.of(NoteKind::left_out))
    log_warning(
        "{}: the chat template leaves out {} of {}, which is neither read nor trained; use another template, or "
        "leave it out of the data too",
        what, part, records(count));
  if (const auto count = notes.count(NoteKind::ends_twice))
    log_warning(
        "{}: in {} the end token is trained twice in a row, since the message's own text ends with it and the "
        "chat template adds it; remove it from the text",
        what, records(count));
}

}  // namespace so
