// Matrix products through cuBLASLt. For each shape the library's first choice of algorithm is looked up once and kept,
// so that the same call gives the same bits in every run.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <tuple>

#include "base/tensor.h"
#include "ops/ops.h"

namespace so {

// Row-major, as everywhere: out [rows, columns] = a b (+ bias) (+ out), where a is [rows, inner], or [inner, rows] if
// transposed, and b is [inner, columns], or [columns, inner] if transposed.
struct Product {
  Tensor out{}, a{}, b{}, bias{};  // bias [columns] or empty
  bool transpose_a = false, transpose_b = false;
  std::int64_t rows = 0, columns = 0, inner = 0;
  Accumulate mode = Accumulate::overwrite;
  // Elements from a row to the next in memory; 0: the matrix is contiguous.
  std::int64_t a_stride = 0, out_stride = 0;
  // Of operands in FP8, which are u8: a in blocks of rows, b, which is transposed, in squares. Empty: other formats.
  Tensor a_scales{}, b_scales{};
};

class CudaGemm {
 public:
  // `workspace` is used by every product: they must be on one stream.
  CudaGemm(void* workspace, std::size_t workspace_bytes);
  ~CudaGemm();
  CudaGemm(const CudaGemm&) = delete;
  CudaGemm& operator=(const CudaGemm&) = delete;

  // Enqueues. fp32 operands are multiplied in full fp32, bf16 ones on the matrix units with fp32 sums. Where a stride
  // is given and the rows that lie so are no multiple of `gemm_multiple` long, their last few elements are multiplied
  // apart, so that the others are at the full rate. A sum over them is rounded once more, to the type of `out`.
  // Products in FP8 add up 128 elements at a time in the matrix units' own precision, and these sums in fp32.
  void run(cudaStream_t stream, const Product& product);

  // Memory that no product uses as its workspace, for an operand of one. Bug if it is smaller.
  void* reserved(std::size_t bytes) const;

 private:
  static constexpr std::size_t reserved_bytes = std::size_t{8} << 20;
  struct Plan;
  // Sizes, strides, dtypes, transpositions, bias, accumulation, alignment of the pointers.
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, int, int, int>;
  void run_whole(cudaStream_t stream, const Product& product);
  Plan& plan(const Product& product, const Key& key);

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_;
  std::size_t workspace_bytes_;
  std::map<Key, Plan> plans_;
};

}  // namespace so
