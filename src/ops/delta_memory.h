// Scratch of the CUDA backend's gated delta rule. Plain arithmetic, so that a dry run on any machine counts what the
// kernels use (ops_memory.h).
//
// Documents are worked on in chunks of 64 rows. What is made of a chunk has a place for each of its rows. States are
// kept of documents of several chunks alone: chunk c of one that begins at row r has the place r / 32 + c, and all of
// them have room, since a document of n > 64 rows has at most n / 32 chunks. So no number depends on how many documents
// there are. Where all heads together would take more than delta_scratch_budget, some key heads with their value heads
// are done at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/ops.h"

namespace so {

inline constexpr std::int64_t delta_chunk = 64, delta_rows_of_state = 32;
inline constexpr std::size_t delta_scratch_budget = std::size_t{3} << 30;
inline std::int64_t delta_states(std::int64_t rows) { return rows / delta_rows_of_state + 1; }
// Chunks that may have rows: those of document i are numbered from starts[i] / 64 + i on.
inline std::int64_t delta_chunks(const DeltaSize& size) { return size.rows / delta_chunk + size.documents; }

// Where the kernels for Hopper keep what they make of each value head, in bytes from the scratch's beginning.
struct ChunkedDeltaScratch {
  ChunkedDeltaScratch(const DeltaSize& size, bool gradient);
  std::size_t inverse = 0, scores = 0;  // bf16 [v_heads, rows, 64]
  std::size_t scales = 0;               // f32 [v_heads, rows, 4]
  std::size_t decays = 0;               // f32 [v_heads, rows], of whole chunks, at their first rows
  // Of the gradient alone.
  std::size_t totals = 0;                // f32 [v_heads, rows], logarithms of decays since the chunk's first row
  std::size_t q_norms = 0, k_norms = 0;  // f32 [rows, k_heads]
  std::size_t values = 0, dvalues = 0;   // bf16 [v_heads, rows, v_dim]
  std::size_t states = 0, dstates = 0;   // bf16 [delta_states(), v_heads, v_dim, k_dim]
  std::size_t bytes = 0;
};

// Where the plain kernels keep what their gradient needs.
struct PlainDeltaScratch {
  explicit PlainDeltaScratch(const DeltaSize& size);
  std::int64_t blocks = 0;     // each takes a document and key head at a time
  std::size_t states = 0;      // f32 [delta_states(), v_heads, k_dim, v_dim], at each chunk's beginning
  std::size_t in_chunk = 0;    // f32 [blocks, 64, k_dim, v_dim]
  std::size_t dq = 0, dk = 0;  // f32 [rows, k_heads, k_dim]
  std::size_t bytes = 0;
};

// Whether the kernels for Hopper take heads of these sizes, if their rows can be read 16 bytes at a time.
inline bool chunked_delta_takes(const DeltaSize& size) {
  return size.dtype == DType::bf16 && size.k_dim == 128 && size.v_dim == 128;
}

// Bytes that serve either kernels. More rows never take less.
std::size_t cuda_delta_scratch(const DeltaSize& size, bool gradient);
// Key heads that are done at a time with that much.
std::int64_t delta_heads_at_once(const DeltaSize& size, bool gradient);
// The same size with some key heads of it.
DeltaSize delta_size_of_heads(const DeltaSize& size, std::int64_t k_heads);

}  // namespace so
