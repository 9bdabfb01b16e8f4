// How a sequence of tokens is cut among the ranks of a group: into contiguous slices whose lengths differ by one at
// most, the longer ones in front. Every rank has at least one token if there are as many tokens as ranks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace so {

// The token at which rank `rank`'s slice begins, and the one before it ends.
constexpr std::int64_t slice_begin(std::int64_t tokens, int ranks, int rank) {
  return (tokens * rank + ranks - 1) / ranks;
}

// The tokens of the longest slice, that of rank 0. Fewer tokens than ranks are padded to one each.
constexpr std::int64_t longest_slice(std::int64_t tokens, int ranks) {
  return tokens == 0 ? 0 : std::max<std::int64_t>(1, slice_begin(tokens, ranks, 1));
}

}  // namespace so
