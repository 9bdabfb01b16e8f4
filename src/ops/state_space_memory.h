// Scratch of the CUDA backend's state spaces. Plain arithmetic, so that a dry run on any machine counts what the
// kernels use (ops_memory.h).
//
// Documents are worked on in chunks of 64 rows, and segments of up to 8 chunks, which are done at the same time. States
// before (after) segments are kept of documents of several segments alone: segment s of one that begins at row r has
// the place r / 256 + s, and all of them have room, since a document of n > 512 rows has at most n / 256 segments. In
// the same way chunk c of a document of several has the place r / 32 + c. So no number depends on how many documents
// there are. Where all heads together would take more than state_space_budget, some groups with their heads are done at
// a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/ops.h"

namespace so {

inline constexpr std::int64_t state_space_chunk = 64, state_space_segment = 512;
inline constexpr std::int64_t state_space_rows_of_chunk = 32, state_space_rows_of_segment = 256;
inline constexpr std::size_t state_space_budget = std::size_t{3} << 30;
// Places of chunks and segments.
inline std::int64_t space_chunk_places(std::int64_t rows) { return rows / state_space_rows_of_chunk + 1; }
inline std::int64_t space_segment_places(std::int64_t rows) { return rows / state_space_rows_of_segment + 1; }
// Those that may have rows: chunks (segments) of document i are numbered from starts[i] / 64 (512) + i on.
inline std::int64_t space_chunks(const StateSpaceSize& size) { return size.rows / state_space_chunk + size.documents; }
inline std::int64_t space_segments(const StateSpaceSize& size) {
  return size.rows / state_space_segment + size.documents;
}

// Where the kernels for Hopper keep what they make of each head, in bytes from the scratch's beginning. Between
// segments states are fp32, as in the recurrence; those that the gradient keeps of chunks are bf16, as they are
// multiplied.
struct ChunkedSpaceScratch {
  ChunkedSpaceScratch(const StateSpaceSize& size, bool gradient);
  std::size_t segments = 0;             // f32 [space_segment_places(), heads, k_dim * v_dim]
  std::size_t decays = 0;               // f32 [space_segment_places(), heads], of whole segments
  std::size_t states = 0, dstates = 0;  // of the gradient alone: bf16 [space_chunk_places(), heads, v_dim, k_dim]
  std::size_t bytes = 0;
};

// Where the plain kernels keep what their gradient needs.
struct PlainSpaceScratch {
  explicit PlainSpaceScratch(const StateSpaceSize& size);
  std::int64_t blocks = 0;     // each takes a document and group at a time
  std::size_t states = 0;      // f32 [space_chunk_places(), heads, k_dim, v_dim]
  std::size_t in_chunk = 0;    // f32 [blocks, 64, k_dim, v_dim]
  std::size_t db = 0, dc = 0;  // f32 [rows, groups, k_dim], sums over the heads of a group
  std::size_t bytes = 0;
};

// The shapes that the kernels for Hopper are compiled for: those of Nemotron 3.
inline bool chunked_space_takes(const StateSpaceSize& size) {
  return size.dtype == DType::bf16 && size.k_dim == 128 && size.v_dim == 64;
}

// Scratch, on any GPU.
std::size_t cuda_space_scratch(const StateSpaceSize& size, bool gradient);
// Groups that are done at a time with that much.
std::int64_t space_groups_at_once(const StateSpaceSize& size, bool gradient);
// The same size with some groups of it.
StateSpaceSize space_size_of_groups(const StateSpaceSize& size, std::int64_t groups);

}  // namespace so
