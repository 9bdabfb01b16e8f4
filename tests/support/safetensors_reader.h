// A safetensors reader for tests, independent of the project's own so that it can be held against it.
// From the format's public description: u64 little-endian header length, JSON header, data.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace so::test {

struct StoredTensor {
  std::string dtype;  // as stored: F32, BF16
  std::vector<std::int64_t> shape;
  std::vector<float> values;  // widened to fp32
};
using StoredTensors = std::map<std::string, StoredTensor>;

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

static_assert(std::endian::native == std::endian::little, "the values are copied as they lie in the file");

inline StoredTensors read_safetensors(const std::filesystem::path& path) {
  const std::string bytes = read_file(path);
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length) throw std::runtime_error(path.string() + ": no header");
  std::memcpy(&length, bytes.data(), sizeof length);
  const auto header = nlohmann::json::parse(bytes.substr(sizeof length, length));
  const std::size_t data = sizeof length + length;
  StoredTensors tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    StoredTensor t;
    t.dtype = entry.at("dtype");
    t.shape = entry.at("shape").get<std::vector<std::int64_t>>();
    std::size_t count = 1;
    for (const std::int64_t d : t.shape) count *= static_cast<std::size_t>(d);
    const std::size_t begin = entry.at("data_offsets").at(0), end = entry.at("data_offsets").at(1);
    const std::size_t width = t.dtype == "F32" ? 4 : t.dtype == "BF16" ? 2 : t.dtype == "U8" ? 1 : 0;
    if (width == 0 || end - begin != count * width || data + end > bytes.size())
      throw std::runtime_error(path.string() + ": " + name + ": dtype " + t.dtype + " or its size");
    t.values.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      if (width == 1) {
        t.values[i] = static_cast<unsigned char>(bytes[data + begin + i]);
        continue;
      }
      std::uint32_t bits = 0;
      std::memcpy(reinterpret_cast<char*>(&bits) + (4 - width), bytes.data() + data + begin + i * width, width);
      t.values[i] = std::bit_cast<float>(bits);
    }
    tensors.emplace(name, std::move(t));
  }
  return tensors;
}

// All weights of a Hugging Face directory, in one file or in the shards its index names.
inline StoredTensors read_model_weights(const std::filesystem::path& directory) {
  const auto index = directory / "model.safetensors.index.json";
  if (!std::filesystem::exists(index)) return read_safetensors(directory / "model.safetensors");
  StoredTensors all;
  std::map<std::string, StoredTensors> shards;
  const auto parsed = nlohmann::json::parse(read_file(index));
  for (const auto& [name, file] : parsed.at("weight_map").items()) {
    const std::string shard = file;
    if (!shards.contains(shard)) shards[shard] = read_safetensors(directory / shard);
    all.emplace(name, shards[shard].at(name));
  }
  return all;
}

inline double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) throw std::runtime_error("distance of tensors of different sizes");
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    sum += d * d;
  }
  return std::sqrt(sum);  // NaN if any value is, which then fails every comparison
}

}  // namespace so::test
