// model.safetensors.index.json from untrusted bytes: an Error, or a map to plain file names.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "io/hf_directory.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto map = so::parse_safetensors_index({reinterpret_cast<const char*>(data), size}, "index");
    if (map.empty()) __builtin_trap();
    for (const auto& [name, file] : map) {
      if (file.empty() || file == "." || file == ".." || file.find('/') != file.npos) __builtin_trap();
    }
  } catch (const so::Error&) {
  }
  return 0;
}
