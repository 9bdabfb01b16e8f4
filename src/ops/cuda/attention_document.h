// How blocks of attention kernels find their work. Included by .cu files only.
#pragma once

#include "ops/cuda/attention_kernels.h"

namespace so::kernel {

// The rows of one document.
struct Document {
  int q_begin, q_count, k_begin, k_count;
  // Query row r sees keys [0, visible(r)).
  __device__ int visible(int r) const { return min(max(r + 1 + k_count - q_count, 0), k_count); }
};

// Tiles of `rows` rows, each of one document: document i has the tiles from first(i) = cu[i] / rows + i on, which
// leaves room for all of them, since first(i + 1) - first(i) >= ceil(length / rows). A block beyond its document's end
// has nothing to do. So the number of blocks depends on sizes alone, and no list of tiles is needed.
inline std::int64_t most_tiles(std::int64_t total_rows, int documents, int rows) {
  return total_rows / rows + documents;
}

struct Tile {
  Document document;
  int first = 0;  // row of the document
  bool any = false;
};

// The tile of this number, cut by cu (a.cu_q or a.cu_k).
__device__ inline Tile find_tile(const AttentionArguments& a, const std::int32_t* cu, int rows, int number) {
  int low = 0, high = a.documents;  // the last document with first(i) <= number
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (cu[middle] / rows + middle <= number)
      low = middle;
    else
      high = middle;
  }
  Tile tile;
  tile.document = {a.cu_q[low], a.cu_q[low + 1] - a.cu_q[low], a.cu_k[low], a.cu_k[low + 1] - a.cu_k[low]};
  const int piece = number - (cu[low] / rows + low);
  tile.first = piece * rows;
  tile.any = piece >= 0 && tile.first < cu[low + 1] - cu[low];
  return tile;
}

__device__ inline float* lse_at(const AttentionArguments& a, const Document& d, int head, int row) {
  return a.lse + static_cast<std::int64_t>(d.q_begin) * a.heads + head * a.lse_layout.head + row * a.lse_layout.row;
}
__device__ inline const float* delta_at(const AttentionArguments& a, const Document& d, int head, int row) {
  return a.delta + static_cast<std::int64_t>(d.q_begin + row) * a.heads + head;
}

}  // namespace so::kernel
