#include "data/one_record.h"

#include <fmt/format.h>

#include <iterator>
#include <span>
#include <vector>

#include "base/error.h"
#include "data/chat/chat_renderer.h"
#include "data/data_file.h"
#include "data/notes_log.h"
#include "data/records.h"

namespace so {

namespace {

OneRecord as_trained(const std::string& name, const RawRecord& raw, const TextEncoder& encoder,
                     const ExampleOptions& options) {
  RecordParser parser(name, encoder.vocabulary_size());
  const Record record = parser.parse(raw);
  OneRecord one{location_of(name, raw), format_of(record), {}, parser.notes()};
  const ExampleBuilder builder(encoder, options);
  RenderedChat rendered;
  const auto* chat = std::get_if<ChatRecord>(&record);
  if (chat != nullptr)
    rendered = ChatRenderer(encoder.chat_template()).render(std::span(&chat->json, 1), trained_turns(options)).at(0);
  try {
    one.documents = chat != nullptr ? std::vector{builder.build_chat(rendered)} : builder.build_all(record);
  } catch (const Error& error) {
    fail("{}: {}", one.location, error.what());
  }
  note_rendered(rendered, one.notes);
  note_example(one.documents.front(), one.notes);
  return one;
}

}  // namespace

OneRecord read_one_record(std::span<const std::filesystem::path> files, std::int64_t number, const TextEncoder& encoder,
                          const ExampleOptions& options) {
  std::int64_t before = 0;  // records of earlier blocks and files
  for (const std::filesystem::path& file : files) {
    const DataFile data(file);
    const auto records = data.records();
    for (std::vector<RawRecord> block; records->next(block); before += std::ssize(block))
      if (number <= before + std::ssize(block))
        return as_trained(data.name(), block[static_cast<std::size_t>(number - before - 1)], encoder, options);
  }
  const std::string what =
      files.size() == 1 ? printable_path(files.front()) + ": the file has" : fmt::format("{} files have", files.size());
  fail("{} {} record{}, and number {} is asked for", what, before, before == 1 ? "" : "s", number);
}

}  // namespace so
