// Any bytes as the answer of the program that renders chat templates. Only so::Error may come out.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "data/chat/chat_renderer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    for (const so::RenderedChat& chat : so::parse_rendered({reinterpret_cast<const char*>(data), size}, 2))
      SO_CHECK(chat.error.empty() || chat.pieces.empty());
  } catch (const so::Error&) {
  }
  return 0;
}
