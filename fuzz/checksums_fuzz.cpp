// checksums.json from untrusted bytes: an Error, or a list that its own text gives again.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "io/checksums.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  so::Checksums list;
  try {
    list = so::parse_checksums({reinterpret_cast<const char*>(data), size}, "list");
  } catch (const so::Error&) {
    return 0;
  }
  if (list.files.empty() || list.step.value_or(0) < 0) __builtin_trap();
  for (const auto& [name, file] : list.files)
    if (name.empty() || name == "." || name == ".." || name.find('/') != name.npos) __builtin_trap();
  if (!(so::parse_checksums(so::to_json(list), "again") == list)) __builtin_trap();
  return 0;
}
