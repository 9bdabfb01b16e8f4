#include "ops/fp8_checks.h"

#include "base/error.h"
#include "ops/checks.h"
#include "ops/fp8_layout.h"

namespace so {
namespace {

// A matrix [rows, k], with the rows that fill up its last four.
void expect_fp8_matrix(const char* op, const char* argument, const Fp8Matrix& matrix, std::int64_t rows,
                       std::int64_t k) {
  expect_tensor(op, argument, matrix.codes, DType::u8, {fp8_stored_rows(rows), Fp8Matrix::width(k)});
  const auto [across, along] = Fp8Matrix::scale_shape(matrix.blocks, rows, k);
  expect_tensor(op, argument, matrix.scales, DType::f32, {across, along});
  if (matrix.blocks == Fp8Matrix::Blocks::squares)
    SO_CHECK(rows % fp8_block == 0, "{}: {} rows in squares of {}", op, rows, fp8_block);
}

}  // namespace

void expect_fp8_quantise(const Fp8Matrix& rows, const Fp8Matrix& columns, const Tensor& x) {
  const char* op = "fp8_quantise";
  SO_CHECK(x.rank() == 2, "{}: x is {}", op, shape_string(x.shape()));
  expect_compute_dtype(op, "x", x.dtype());
  SO_CHECK(x.dim(1) % fp8_block == 0, "{}: {} columns are no whole blocks", op, x.dim(1));
  if (rows) expect_fp8_matrix(op, "rows", rows, x.dim(0), x.dim(1));
  if (columns) expect_fp8_matrix(op, "columns", columns, x.dim(1), x.dim(0));
  if (rows && columns) SO_CHECK(rows.blocks == columns.blocks, "{}: two kinds of blocks", op);
}

void expect_fp8_product(const Tensor& out, const Fp8Matrix& a, const Fp8Matrix& b, const Tensor& bias) {
  const char* op = "fp8_product";
  SO_CHECK(a.codes.rank() == 2 && b.codes.rank() == 2, "{}: a is {}, b {}", op, shape_string(a.codes.shape()),
           shape_string(b.codes.shape()));
  const std::int64_t k = a.codes.dim(1);
  SO_CHECK(k % fp8_block == 0, "{}: {} columns are no whole blocks", op, k);
  SO_CHECK(a.blocks == Fp8Matrix::Blocks::rows && b.blocks == Fp8Matrix::Blocks::squares,
           "{}: the first matrix is in rows, the second in squares", op);
  SO_CHECK(out.rank() == 2, "{}: out is {}", op, shape_string(out.shape()));
  expect_fp8_matrix(op, "a", a, out.dim(0), k);
  expect_fp8_matrix(op, "b", b, b.codes.dim(0), k);
  expect_compute_dtype(op, "out", out.dtype());
  expect_tensor(op, "out", out, out.dtype(), {out.dim(0), b.codes.dim(0)});
  if (bias) expect_tensor(op, "bias", bias, bias.dtype(), {b.codes.dim(0)});
}

}  // namespace so
