// Tensors as bytes: read and written without the project's reader and writer.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/safetensors_reader.h"

namespace so::test {

// A safetensors file from raw bytes, written without the project's writer.
struct RawTensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};
inline void write_safetensors(const std::filesystem::path& path, const std::vector<RawTensor>& tensors) {
  nlohmann::ordered_json header;
  std::string data;
  for (const RawTensor& t : tensors) {
    header[t.name] = {
        {"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
    data += t.bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  write_file(path, std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data);
}

using RawTensors = std::map<std::string, RawTensor>;

// Every tensor of a directory as its bytes lie in the files.
inline RawTensors raw_tensors(const std::filesystem::path& directory) {
  RawTensors all;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string bytes = read_file(entry.path());
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    const auto header = nlohmann::json::parse(bytes.substr(sizeof length, length));
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") continue;
      const std::size_t begin = value.at("data_offsets").at(0), end = value.at("data_offsets").at(1);
      all[name] = {name, value.at("dtype"), value.at("shape").get<std::vector<std::int64_t>>(),
                   bytes.substr(sizeof length + length + begin, end - begin)};
    }
  }
  return all;
}

}  // namespace so::test
