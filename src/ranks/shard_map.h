// Which rank owns which slice of an array of elements (a bucket's optimizer state, its gradient, its weights).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace so {

// Slices follow one another in rank order and cover the array without gaps. Each begins at a multiple of `alignment`
// elements, and their lengths differ by at most one alignment. Where there are fewer alignments than ranks, the last
// ranks own nothing.
class ShardMap {
 public:
  static constexpr std::int64_t default_alignment = 16;  // a cache line of fp32, and a vector of any instruction set

  struct Slice {
    std::int64_t begin = 0, end = 0;
    std::int64_t size() const { return end - begin; }
    friend bool operator==(const Slice&, const Slice&) = default;
  };

  ShardMap(std::int64_t elements, int ranks, std::int64_t alignment = default_alignment);

  std::int64_t elements() const { return elements_; }
  Slice slice(int rank) const;
  int owner(std::int64_t element) const;  // of one that there is
  // For each rank, as collectives take them; valid while the map lives.
  std::span<const std::int64_t> counts() const { return counts_; }

 private:
  std::int64_t elements_;
  std::vector<std::int64_t> counts_;
};

}  // namespace so
