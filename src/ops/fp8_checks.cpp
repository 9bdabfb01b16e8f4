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

// Such a matrix in this kind of blocks, with whole blocks in the width of what it is made of.
void expect_fp8_made(const char* op, const char* argument, const Fp8Matrix& matrix, Fp8Matrix::Blocks blocks,
                     std::int64_t rows, std::int64_t k, std::int64_t width) {
  SO_CHECK(width % fp8_block == 0, "{}: {} columns are no whole blocks", op, width);
  expect_fp8_matrix(op, argument, matrix, rows, k);
  SO_CHECK(matrix.blocks == blocks, "{}: {} is in the wrong kind of blocks", op, argument);
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

void expect_fp8_quantise_norm(const Fp8Matrix& columns, const Tensor& x, const Tensor& inv_rms, const Tensor& weight) {
  const char* op = "fp8_quantise_norm";
  SO_CHECK(x.rank() == 2, "{}: x is {}", op, shape_string(x.shape()));
  expect_compute_dtype(op, "x", x.dtype());
  const std::int64_t n = x.dim(0), width = x.dim(1);
  expect_tensor(op, "x", x, x.dtype(), {n, width});
  expect_tensor(op, "inv_rms", inv_rms, DType::f32, {n});
  expect_tensor(op, "weight", weight, x.dtype(), {width});
  expect_fp8_made(op, "columns", columns, Fp8Matrix::Blocks::squares, width, n, width);
}

void expect_fp8_swiglu_grad(const Ops::Fp8SwigluGrad& g) {
  const char* op = "fp8_swiglu_grad";
  SO_CHECK(g.dout.rank() == 2, "{}: dout is {}", op, shape_string(g.dout.shape()));
  const DType t = g.dout.dtype();
  expect_compute_dtype(op, "dout", t);
  const std::int64_t n = g.dout.dim(0), width = g.dout.dim(1), inputs = inputs_of(g.activation) * width;
  expect_tensor(op, "dout", g.dout, t, {n, width});
  expect_tensor(op, "gate_up", g.gate_up, t, {n, inputs});
  if (g.dgate_up) expect_tensor(op, "dgate_up", g.dgate_up, t, {n, inputs});
  expect_fp8_made(op, "rows", g.rows, Fp8Matrix::Blocks::rows, n, inputs, width);
  if (g.columns) expect_fp8_made(op, "columns", g.columns, Fp8Matrix::Blocks::rows, inputs, n, width);
  if (g.activated) expect_fp8_made(op, "activated", g.activated, Fp8Matrix::Blocks::squares, width, n, width);
}

void expect_add_rms_norm(const Tensor& out, const Tensor& sum, const Tensor& inv_rms, const Tensor& x,
                         const Tensor& delta, const Tensor& weight, const Fp8Matrix& rows) {
  const char* op = "add_rms_norm";
  SO_CHECK(x.rank() == 2, "{}: x is {}", op, shape_string(x.shape()));
  const DType t = x.dtype();
  const std::int64_t n = x.dim(0), width = x.dim(1);
  expect_compute_dtype(op, "x", t);
  expect_tensor(op, "x", x, t, {n, width});
  if (out || !rows) expect_tensor(op, "out", out, t, {n, width});
  if (rows) expect_fp8_made(op, "rows", rows, Fp8Matrix::Blocks::rows, n, width, width);
  expect_tensor(op, "inv_rms", inv_rms, DType::f32, {n});
  expect_tensor(op, "weight", weight, t, {width});
  SO_CHECK(static_cast<bool>(delta) == static_cast<bool>(sum), "{}: delta and sum are given together or not at all",
           op);
  if (delta) {
    expect_tensor(op, "delta", delta, t, {n, width});
    expect_tensor(op, "sum", sum, t, {n, width});
  }
}

void expect_swiglu(const Tensor& out, const Tensor& gate_up, MlpActivation activation, const Fp8Matrix& rows) {
  const char* op = "swiglu";
  SO_CHECK(gate_up.rank() == 2, "{}: gate_up is {}", op, shape_string(gate_up.shape()));
  const DType t = gate_up.dtype();
  expect_compute_dtype(op, "gate_up", t);
  const std::int64_t n = gate_up.dim(0), width = gate_up.dim(1) / inputs_of(activation);
  expect_tensor(op, "gate_up", gate_up, t, {n, inputs_of(activation) * width});
  if (out || !rows) expect_tensor(op, "out", out, t, {n, width});
  if (rows) expect_fp8_made(op, "rows", rows, Fp8Matrix::Blocks::rows, n, width, width);
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
