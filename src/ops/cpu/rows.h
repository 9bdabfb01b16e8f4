// Cuts the work of row-wise ops. Pieces are cut by index only, so no result depends on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/tensor.h"
#include "base/thread_pool.h"
#include "ops/ops.h"

namespace so {

// Elements a piece of work should have: some tens of microseconds of memory traffic, several times what it costs to
// wake a thread. Less than this runs on the caller.
inline constexpr std::int64_t kElementsPerPiece = 1 << 15;

// Rows of `width` elements to a piece.
inline std::int64_t row_grain(std::int64_t width) {
  return std::max<std::int64_t>(1, kElementsPerPiece / std::max<std::int64_t>(1, width));
}

// Where head h of row n begins.
template <class T>
T* head_at(const Heads& heads, std::int64_t n, std::int64_t h) {
  return heads.rows.as<T>() + n * heads.rows.dim(1) + heads.offset + h * heads.step();
}

// Where documents begin, and where the last ends: data of the device, so this is called when the op runs. Bug if they
// do not ascend within `rows`.
std::span<const std::int32_t> document_starts(const char* op, const PackedDocuments& documents, std::int64_t rows);

// Sums over rows, one for each column (gradients of weights that every row shares), in a fixed order: rows are taken in
// blocks of kRows, each block adds its rows in order into its own fp32 sums, and finish() adds the blocks in order in
// double. Usage: parallel_for over blocks() with grain 1, each filling block(b) from its rows; then finish().
class BlockSums {
 public:
  static constexpr std::int64_t kRows = 64;

  BlockSums(std::int64_t rows, std::int64_t columns)
      : rows_(rows),
        columns_(columns),
        blocks_((rows + kRows - 1) / kRows),
        sums_(static_cast<std::size_t>(blocks_ * columns)) {}

  std::int64_t blocks() const { return blocks_; }
  std::int64_t begin(std::int64_t b) const { return b * kRows; }
  std::int64_t end(std::int64_t b) const { return std::min(rows_, (b + 1) * kRows); }
  float* block(std::int64_t b) { return sums_.data() + b * columns_; }  // zero at first

  // total (+)= the sums, rounded once to its dtype. total f32 or bf16, `columns` elements.
  void finish(ThreadPool& pool, const Tensor& total, Accumulate mode) const;

 private:
  std::int64_t rows_, columns_, blocks_;
  std::vector<float> sums_;
};

}  // namespace so
