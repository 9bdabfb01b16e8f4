// JSON's numbers as Python writes them: any bytes. What a strict parser reads means the same afterwards, rewriting is
// done after one pass and keeps the lines, and held numbers come back as they were.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/json_text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace so;
  using nlohmann::json;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const json strict = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto plain = with_plain_numbers(text);
  if (plain) {
    SO_CHECK(!with_plain_numbers(*plain), "rewritten twice");
    SO_CHECK(std::count(text.begin(), text.end(), '\n') == std::count(plain->begin(), plain->end(), '\n'), "lines");
    if (!strict.is_discarded()) {
      const json again = json::parse(*plain, nullptr, /*allow_exceptions=*/false);
      SO_CHECK(again == strict, "another meaning");
    }
  }
  const HeldNumbers held(text);
  SO_CHECK(held.restored(held.text()) == text, "held numbers");
  (void)json_fault(text, "reason");
  return 0;
}
