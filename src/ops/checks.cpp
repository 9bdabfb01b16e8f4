#include "ops/checks.h"

#include <algorithm>

namespace so {

void expect_compute_dtype(const char* op, const char* argument, DType dtype) {
  SO_CHECK(dtype == DType::f32 || dtype == DType::bf16, "{}: {} is {}, not f32 or bf16", op, argument, name_of(dtype));
}

void expect_tensor(const char* op, const char* argument, const Tensor& tensor, DType dtype,
                   std::initializer_list<std::int64_t> shape) {
  const bool same_shape = std::ranges::equal(tensor.shape(), shape);
  SO_CHECK(same_shape, "{}: {} is {}, not {}", op, argument, shape_string(tensor.shape()),
           shape_string({shape.begin(), shape.size()}));
  SO_CHECK(tensor || tensor.size() == 0, "{}: {} is empty", op, argument);
  SO_CHECK(tensor.dtype() == dtype, "{}: {} is {}, not {}", op, argument, name_of(tensor.dtype()), name_of(dtype));
}

void expect_gradient(const char* op, const char* argument, const Tensor& tensor, DType compute,
                     std::initializer_list<std::int64_t> shape) {
  expect_tensor(op, argument, tensor, tensor.dtype() == DType::f32 ? DType::f32 : compute, shape);
}

void expect_heads(const char* op, const char* argument, const Heads& heads, DType dtype, std::int64_t n) {
  SO_CHECK(heads.rows.rank() == 2, "{}: {} has rows {}, not [N, width]", op, argument,
           shape_string(heads.rows.shape()));
  const std::int64_t width = heads.rows.dim(1);
  expect_tensor(op, argument, heads.rows, dtype, {n, width});
  SO_CHECK(heads.heads > 0 && heads.head_dim > 0 && heads.offset >= 0 &&
               heads.offset + heads.heads * heads.head_dim <= width,
           "{}: {} has {} heads of {} at {} in rows of {}", op, argument, heads.heads, heads.head_dim, heads.offset,
           width);
}

}  // namespace so
