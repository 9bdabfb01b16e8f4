// Hashes of byte strings: a fast one for tables in memory and FNV-1a for what is stored.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace so {

inline std::uint64_t mix64(std::uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

// In memory only: depends on the byte order.
inline std::uint64_t table_hash(std::string_view bytes) {
  std::uint64_t hash = bytes.size();
  const char* at = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t word = 0;
  for (; left > 8; at += 8, left -= 8) {
    std::memcpy(&word, at, 8);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  word = 0;
  if (left != 0) std::memcpy(&word, at, left);
  return mix64(hash ^ word);
}

// FNV-1a, 64 bits. `hash` continues an earlier one.
inline std::uint64_t fnv1a(std::string_view bytes, std::uint64_t hash = 0xCBF29CE484222325u) {
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

}  // namespace so
