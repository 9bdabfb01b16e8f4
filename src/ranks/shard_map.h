// Which rank owns which slice of an array of elements (a bucket's optimizer state, its gradient, its weights).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace so {

// Slices follow one another in rank order and cover the array without gaps. Each begins at a multiple of `alignment`
// elements, and their lengths differ by at most one alignment, so that none is longer than the first. Where there are
// fewer alignments than ranks, the last ranks own nothing.
class ShardMap {
 public:
  static constexpr std::int64_t default_alignment = 16;  // a cache line of fp32, and a vector of any instruction set

  struct Slice {
    std::int64_t begin = 0, end = 0;
    std::int64_t size() const { return end - begin; }
    friend bool operator==(const Slice&, const Slice&) = default;
  };

  ShardMap(std::int64_t elements, int ranks, std::int64_t alignment = default_alignment);
  // The same slices, but each begins at the last place up to there at which the array may be cut, which cut_before()
  // gives; it does not decrease, and leaves the array's ends as they are. Any rank may own nothing then, or most.
  ShardMap(std::int64_t elements, int ranks, const std::function<std::int64_t(std::int64_t)>& cut_before);

  std::int64_t elements() const { return elements_; }
  Slice slice(int rank) const;
  int owner(std::int64_t element) const;  // of one that there is
  // For each rank, as collectives take them; valid while the map lives.
  std::span<const std::int64_t> counts() const { return counts_; }
  std::int64_t longest() const { return *std::max_element(counts_.begin(), counts_.end()); }

 private:
  std::int64_t elements_;
  std::vector<std::int64_t> counts_;
};

}  // namespace so
