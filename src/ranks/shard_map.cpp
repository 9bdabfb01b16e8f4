#include "ranks/shard_map.h"

#include <numeric>

#include "base/error.h"

namespace so {

ShardMap::ShardMap(std::int64_t elements, int ranks, std::int64_t alignment) : elements_(elements) {
  SO_CHECK(elements >= 0 && ranks >= 1 && alignment >= 1, "{} elements over {} ranks, aligned to {}", elements, ranks,
           alignment);
  // The last alignment may be a part of one, so it goes to the last rank that owns anything.
  const std::int64_t alignments = (elements + alignment - 1) / alignment;
  const std::int64_t each = alignments / ranks, longer = alignments % ranks;
  std::int64_t begin = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t end = std::min(begin + (each + (rank < longer ? 1 : 0)) * alignment, elements);
    counts_.push_back(end - begin);
    begin = end;
  }
}

ShardMap::ShardMap(std::int64_t elements, int ranks, const std::function<std::int64_t(std::int64_t)>& cut_before)
    : ShardMap(elements, ranks) {
  std::int64_t begin = 0, even = 0;
  for (std::int64_t& count : counts_) {
    even += count;
    const std::int64_t end = cut_before(even);
    SO_CHECK(end >= begin && (even < elements || end == elements), "a cut at {} behind one at {}", end, begin);
    count = end - begin;
    begin = end;
  }
}

ShardMap::Slice ShardMap::slice(int rank) const {
  SO_CHECK(rank >= 0 && rank < std::ssize(counts_), "rank {} of {}", rank, counts_.size());
  const std::int64_t begin = std::accumulate(counts_.begin(), counts_.begin() + rank, std::int64_t{0});
  return {begin, begin + counts_[static_cast<std::size_t>(rank)]};
}

int ShardMap::owner(std::int64_t element) const {
  SO_CHECK(element >= 0 && element < elements_, "element {} of {}", element, elements_);
  int rank = 0;
  for (std::int64_t end = counts_[0]; element >= end; end += counts_[static_cast<std::size_t>(rank)]) ++rank;
  return rank;
}

}  // namespace so
