#include "ops/delta_memory.h"

#include <algorithm>

#include "ops/places.h"

namespace so {

ChunkedDeltaScratch::ChunkedDeltaScratch(const DeltaSize& size, bool gradient) {
  Places places;
  const std::int64_t rows = size.rows * size.v_heads;
  inverse = places.next(rows * delta_chunk, 2);
  scores = places.next(rows * delta_chunk, 2);
  scales = places.next(rows * 4, 4);
  decays = places.next(rows, 4);
  if (gradient) {
    const std::int64_t state = delta_states(size.rows) * size.v_heads * size.k_dim * size.v_dim;
    totals = places.next(rows, 4);
    q_norms = places.next(size.rows * size.k_heads, 4);
    k_norms = places.next(size.rows * size.k_heads, 4);
    values = places.next(rows * size.v_dim, 2);
    dvalues = places.next(rows * size.v_dim, 2);
    states = places.next(state, 2);
    dstates = places.next(state, 2);
  }
  bytes = places.end();
}

PlainDeltaScratch::PlainDeltaScratch(const DeltaSize& size) {
  constexpr std::int64_t most_blocks = 64;
  Places places;
  blocks = std::min(size.rows * size.k_heads, most_blocks);
  const std::int64_t state = size.k_dim * size.v_dim;
  states = places.next(delta_states(size.rows) * size.v_heads * state, 4);
  in_chunk = places.next(blocks * delta_chunk * state, 4);
  dq = places.next(size.rows * size.k_heads * size.k_dim, 4);
  dk = places.next(size.rows * size.k_heads * size.k_dim, 4);
  bytes = places.end();
}

DeltaSize delta_size_of_heads(const DeltaSize& size, std::int64_t k_heads) {
  DeltaSize part = size;
  part.k_heads = k_heads;
  part.v_heads = size.v_heads / size.k_heads * k_heads;
  return part;
}

namespace {

std::size_t bytes_of_heads(const DeltaSize& all, std::int64_t k_heads, bool gradient) {
  const DeltaSize size = delta_size_of_heads(all, k_heads);
  const std::size_t plain = gradient ? PlainDeltaScratch(size).bytes : 0;
  return std::max(plain, chunked_delta_takes(size) ? ChunkedDeltaScratch(size, gradient).bytes : 0);
}

}  // namespace

std::size_t cuda_delta_scratch(const DeltaSize& size, bool gradient) {
  const std::size_t all = bytes_of_heads(size, size.k_heads, gradient);
  return all <= delta_scratch_budget ? all : std::max(delta_scratch_budget, bytes_of_heads(size, 1, gradient));
}

std::int64_t delta_heads_at_once(const DeltaSize& size, bool gradient) {
  const std::size_t bytes = cuda_delta_scratch(size, gradient);
  std::int64_t heads = size.k_heads;
  while (heads > 1 && bytes_of_heads(size, heads, gradient) > bytes) --heads;
  return heads;
}

}  // namespace so
