// Changing the numbers of a safetensors file in place.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "support/io.h"
#include "support/safetensors_reader.h"

namespace so::test {

// Sets every element of a stored fp32 tensor, or the one given.
inline void fill_tensor(const std::filesystem::path& file, const std::string& name, float value,
                        std::optional<std::size_t> element = {}) {
  std::string bytes = read_file(file);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const auto entry = nlohmann::json::parse(bytes.substr(sizeof length, length)).at(name);
  ASSERT_EQ(entry.at("dtype"), "F32");
  const std::size_t data = sizeof length + length;
  const std::size_t begin = entry.at("data_offsets").at(0), end = entry.at("data_offsets").at(1);
  for (std::size_t at = data + begin, i = 0; at < data + end; at += sizeof value, ++i)
    if (!element || *element == i) std::memcpy(bytes.data() + at, &value, sizeof value);
  std::filesystem::permissions(file, std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
  write_file(file, bytes);
}

}  // namespace so::test
