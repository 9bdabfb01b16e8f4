// Products of groups of rows, all groups in one launch, on Hopper's matrix units: through CUTLASS, whose headers only
// hopper/grouped_gemm.cu includes. Group g has the rows [offsets[g], offsets[g + 1]) of the matrices that have rows;
// `offsets` is device memory, and the host never knows how long a group is. bf16 operands, fp32 sums, one rounding.
//
// Every pointer and every row must be aligned to 16 bytes: sizes other than the number of rows are multiples of 8.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace so {

// The memory and streams that a launch uses beside its operands.
struct GroupedLaunch {
  cudaStream_t stream = nullptr;
  int device = 0, multiprocessors = 0;
  void* scratch = nullptr;  // aligned to 256 bytes
  std::size_t scratch_bytes = 0;
};

// Rows: out [rows, columns] = a [rows, inner] times the group's matrix of b.
// Weights: the group's matrix of out [rows, columns] = a^T b, of the group's rows of a [inner, rows] and b [inner,
// columns]. A group without rows gets none: its matrix is left as it is.
struct GroupedProduct {
  void* out = nullptr;
  const void *a = nullptr, *b = nullptr;
  const std::int32_t* offsets = nullptr;
  std::int64_t groups = 0;
  std::int64_t rows = 0, columns = 0, inner = 0;  // the size that the groups share out is not read
  bool add = false;                               // to what `out` has; weights only
};

// Enqueue; Bug if CUTLASS refuses. Rows: bf16 out, b [groups, columns, inner] if transposed, else [groups, inner,
// columns].
void grouped_rows_transposed(const GroupedLaunch&, const GroupedProduct&);
void grouped_rows(const GroupedLaunch&, const GroupedProduct&);
// Weights: out of fp32 or bf16.
void grouped_weights_f32(const GroupedLaunch&, const GroupedProduct&);
void grouped_weights_bf16(const GroupedLaunch&, const GroupedProduct&);

}  // namespace so
