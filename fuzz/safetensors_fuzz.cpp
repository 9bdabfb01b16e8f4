// A whole safetensors file from untrusted bytes: an Error, or tensors that tile the data and can all be read.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int descriptor = ::memfd_create("input.safetensors", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  if (::ftruncate(descriptor, 0) != 0 || ::pwrite(descriptor, data, size, 0) != static_cast<ssize_t>(size))
    __builtin_trap();
  try {
    const so::SafetensorsReader reader(path);
    std::uint64_t total = 0;
    for (const std::string& name : reader.names()) {
      try {
        const so::TensorInfo* fp8 = reader.find_fp8(name);
        const so::TensorInfo& info = fp8 != nullptr ? *fp8 : reader.info(name);
        if (info.begin > info.end || info.end > reader.data_bytes()) __builtin_trap();
        std::vector<std::byte> content(info.bytes());
        reader.read_into(name, content);
        const auto mapped = reader.bytes(name);
        if (!std::equal(content.begin(), content.end(), mapped.begin(), mapped.end())) __builtin_trap();
        total += info.bytes();
      } catch (const so::Error&) {  // an element type of the format that the engine lacks
      }
    }
    if (total > reader.data_bytes()) __builtin_trap();
  } catch (const so::Error&) {
  }
  return 0;
}
