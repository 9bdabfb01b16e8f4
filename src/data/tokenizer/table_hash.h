// The hash of tables in memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/hash.h"

namespace so {

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
  return mix_bits(hash ^ word);
}

}  // namespace so
