// An array of which every rank has a slice, and is to get those of all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace so {

struct SliceGather {
  const std::byte* own;                 // bytes[rank] bytes, which may lie at their place in `all` already
  std::span<const std::int64_t> bytes;  // by rank
  std::byte* all;                       // one rank's slice after another's
};

// Each rank's slice of `all`.
inline std::vector<std::span<std::byte>> slices_of(std::byte* all, std::span<const std::int64_t> bytes) {
  std::vector<std::span<std::byte>> slices;
  for (const std::int64_t count : bytes) {
    slices.emplace_back(all, static_cast<std::size_t>(count));
    all += count;
  }
  return slices;
}

}  // namespace so
