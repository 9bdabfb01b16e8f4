#include "data/one_record.h"

#include <span>

#include "base/error.h"
#include "base/file.h"
#include "data/chat/chat_renderer.h"
#include "data/records.h"

namespace so {

OneRecord read_one_record(const std::filesystem::path& file, std::int64_t number, const TextEncoder& encoder,
                          const ExampleOptions& options) {
  const MappedFile mapped(file);
  const std::string name = file.string();
  RecordReader reader(name, mapped.text());
  RawRecord raw;
  for (std::int64_t i = 0; i < number; ++i)
    if (!reader.next(raw)) fail("{}: the file has {} records, and number {} is asked for", name, i, number);
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
