// Hostile tokenizer.json: parse, and if that succeeds encode and decode. Only so::Error may come out.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  so::set_log_level(so::LogLevel::error);
  try {
    const auto tokenizer = so::Tokenizer::parse(std::string_view(reinterpret_cast<const char*>(data), size), "input");
    const std::string text =
        "It's a  test <end> of\r\n\n 12345 wörds, 中文 e\xCC\x81 \xF0\x9F\x99\x82 \xFF "
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const auto ids = tokenizer.encode(text, true);
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
    }
    if (!so::is_valid_utf8(tokenizer.decode(ids, false))) std::abort();
  } catch (const so::Error&) {
  }
  return 0;
}
