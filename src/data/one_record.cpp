#include "data/one_record.h"

#include <iterator>
#include <span>
#include <vector>

#include "base/error.h"
#include "data/chat/chat_renderer.h"
#include "data/data_file.h"
#include "data/records.h"

namespace so {

OneRecord read_one_record(const std::filesystem::path& file, std::int64_t number, const TextEncoder& encoder,
                          const ExampleOptions& options) {
  const DataFile data(file);
  const std::string& name = data.name();
  const auto records = data.records();
  std::vector<RawRecord> block;
  std::int64_t before = 0;  // records of earlier blocks
  while (records->next(block) && before + std::ssize(block) < number) before += std::ssize(block);
  if (block.empty()) fail("{}: the file has {} records, and number {} is asked for", name, before, number);
  const RawRecord raw = block[static_cast<std::size_t>(number - before - 1)];
  const Record record = RecordParser(name, encoder.vocabulary_size()).parse(raw);
  OneRecord one{location_of(name, raw), format_of(record), {}};
  const ExampleBuilder builder(encoder, options);
  RenderedChat rendered;
  const auto* chat = std::get_if<ChatRecord>(&record);
  if (chat != nullptr)
    rendered = ChatRenderer(encoder.chat_template()).render(std::span(&chat->json, 1), trained_turns(options)).at(0);
  try {
    one.example = chat != nullptr ? builder.build_chat(rendered) : builder.build(record);
  } catch (const Error& error) {
    fail("{}: {}", one.location, error.what());
  }
  return one;
}

}  // namespace so
