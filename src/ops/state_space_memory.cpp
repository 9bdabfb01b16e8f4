#include "ops/state_space_memory.h"

#include <algorithm>

#include "ops/places.h"

namespace so {

ChunkedSpaceScratch::ChunkedSpaceScratch(const StateSpaceSize& size, bool gradient) {
  Places places;
  const std::int64_t state = size.heads * size.k_dim * size.v_dim;
  segments = places.next(space_segment_places(size.rows) * state, 4);
  decays = places.next(space_segment_places(size.rows) * size.heads, 4);
  if (gradient) {
    states = places.next(space_chunk_places(size.rows) * state, 2);
    dstates = places.next(space_chunk_places(size.rows) * state, 2);
  }
  bytes = places.end();
}

PlainSpaceScratch::PlainSpaceScratch(const StateSpaceSize& size) {
  constexpr std::int64_t most_blocks = 64;
  Places places;
  blocks = std::min(size.rows * size.groups, most_blocks);
  const std::int64_t state = size.k_dim * size.v_dim;
  states = places.next(space_chunk_places(size.rows) * size.heads * state, 4);
  in_chunk = places.next(blocks * state_space_chunk * state, 4);
  db = places.next(size.rows * size.groups * size.k_dim, 4);
  dc = places.next(size.rows * size.groups * size.k_dim, 4);
  bytes = places.end();
}

StateSpaceSize space_size_of_groups(const StateSpaceSize& size, std::int64_t groups) {
  StateSpaceSize part = size;
  part.groups = groups;
  part.heads = size.heads / size.groups * groups;
  return part;
}

namespace {

std::size_t bytes_of_groups(const StateSpaceSize& all, std::int64_t groups, bool gradient) {
  const StateSpaceSize size = space_size_of_groups(all, groups);
  const std::size_t plain = gradient ? PlainSpaceScratch(size).bytes : 0;
  return std::max(plain, chunked_space_takes(size) ? ChunkedSpaceScratch(size, gradient).bytes : 0);
}

}  // namespace

std::size_t cuda_space_scratch(const StateSpaceSize& size, bool gradient) {
  const std::size_t all = bytes_of_groups(size, size.groups, gradient);
  return all <= state_space_budget ? all : std::max(state_space_budget, bytes_of_groups(size, 1, gradient));
}

std::int64_t space_groups_at_once(const StateSpaceSize& size, bool gradient) {
  const std::size_t bytes = cuda_space_scratch(size, gradient);
  std::int64_t groups = size.groups;
  while (groups > 1 && bytes_of_groups(size, groups, gradient) > bytes) --groups;
  return groups;
}

}  // namespace so
