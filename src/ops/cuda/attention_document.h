// How blocks of attention kernels find their work. Included by .cu files only.
#pragma once

#include "device/cuda/kernel.h"
#include "ops/cuda/attention_kernels.h"

namespace so::kernel {

// The rows of one document.
struct Document {
  int q_begin, q_count, k_begin, k_count, window;
  // Query row r sees keys [first(r), visible(r)).
  __device__ int visible(int r) const { return min(max(r + 1 + k_count - q_count, 0), k_count); }
  __device__ int first(int r) const { return max(r + 1 + k_count - q_count - window, 0); }
  // The queries that see any of the keys [begin, end) are in [first_query(begin), past_query(end)).
  __device__ int first_query(int begin) const { return max(begin - k_count + q_count, 0); }
  __device__ int past_query(int end) const {
    return min(max(min(end, k_count) - 1 - k_count + q_count + window, 0), q_count);
  }
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
  tile.document = {a.cu_q[low], a.cu_q[low + 1] - a.cu_q[low], a.cu_k[low], a.cu_k[low + 1] - a.cu_k[low], a.window};
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

// The sink of a head, minus infinity without one.
template <class T>
__device__ inline float sink_of(const AttentionArguments& a, int head) {
  return a.sinks ? to_float(static_cast<const T*>(a.sinks)[head]) : -INFINITY;
}

}  // namespace so::kernel
