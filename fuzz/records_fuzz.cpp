// Any bytes as a data file: cut into records, parsed, made into examples. Only so::Error may come out.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "data/example.h"
#include "data/records.h"

namespace {

class ByteEncoder : public so::TextEncoder {
 public:
  std::vector<std::int32_t> encode(std::string_view text, bool) const override {
    std::vector<std::int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::optional<std::int32_t> end_token() const override { return 256; }
  std::int32_t vocabulary_size() const override { return 257; }
  std::string fingerprint() const override { return "bytes"; }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const ByteEncoder encoder;
  static const so::ExampleBuilder builder(encoder, {.max_length = 64});
  try {
    so::RecordReader reader("data", {reinterpret_cast<const char*>(data), size});
    so::RecordParser parser("data", encoder.vocabulary_size());
    for (so::RawRecord raw; reader.next(raw);) {
      try {
        const so::Record record = parser.parse(raw);
        // A conversation is rendered by another process, which reads it as it stands.
        if (std::holds_alternative<so::ChatRecord>(record)) continue;
        const so::Example example = builder.build(record);
        SO_CHECK(!example.ids.empty() && example.ids.size() <= 64 && example.targets.size() == example.ids.size());
        for (const std::int32_t id : example.ids) SO_CHECK(id >= 0 && id < encoder.vocabulary_size());
      } catch (const so::Error&) {  // go on with the next record: a real run stops here, the fuzzer need not
      }
    }
  } catch (const so::Error&) {
  }
  return 0;
}
