#include "ops/state_space_checks.h"

#include "ops/checks.h"

namespace so {
namespace {

void expect_step_gate_inputs(const char* op, const Ops::StepGates& g) {
  SO_CHECK(g.x.rows.rank() == 2, "{}: x has rows {}, not [N, width]", op, shape_string(g.x.rows.shape()));
  const DType dtype = g.x.rows.dtype();
  expect_compute_dtype(op, "x", dtype);
  const std::int64_t heads = g.x.head_dim;
  expect_counted_heads(op, "x", g.x, dtype, g.x.rows.dim(0), 1, heads);
  expect_tensor(op, "a_log", g.a_log, dtype, {heads});
  expect_tensor(op, "dt_bias", g.dt_bias, dtype, {heads});
  SO_CHECK(g.low >= 0 && g.low <= g.high, "{}: steps from {} to {}", op, g.low, g.high);
}

StateSpaceSize expect_state_space_inputs(const char* op, const Ops::StateSpace& s) {
  SO_CHECK(s.x.rows.rank() == 2, "{}: x has rows {}, not [N, width]", op, shape_string(s.x.rows.shape()));
  const DType dtype = s.x.rows.dtype();
  expect_compute_dtype(op, "x", dtype);
  const std::int64_t rows = s.x.rows.dim(0);
  expect_heads(op, "x", s.x, dtype, rows);
  expect_heads(op, "b", s.b, dtype, rows);
  expect_counted_heads(op, "c", s.c, dtype, rows, s.b.heads, s.b.head_dim);
  SO_CHECK(s.x.heads % s.b.heads == 0, "{}: {} heads in {} groups", op, s.x.heads, s.b.heads);
  expect_tensor(op, "decay", s.decay, DType::f32, {rows, s.x.heads});
  expect_tensor(op, "step", s.step, DType::f32, {rows, s.x.heads});
  expect_tensor(op, "skip", s.skip, dtype, {s.x.heads});
  expect_documents(op, s.documents);
  return {rows, s.documents.count, s.b.heads, s.x.heads, s.b.head_dim, s.x.head_dim, dtype};
}

}  // namespace

void expect_step_gates(const char* op, const Ops::StepGates& g) {
  expect_step_gate_inputs(op, g);
  expect_tensor(op, "decay", g.decay, DType::f32, {g.x.rows.dim(0), g.x.head_dim});
  expect_tensor(op, "step", g.step, DType::f32, {g.x.rows.dim(0), g.x.head_dim});
}

void expect_step_gates_grad(const char* op, const Ops::StepGatesGrad& g) {
  expect_step_gate_inputs(op, g.forward);
  const DType dtype = g.forward.x.rows.dtype();
  const std::int64_t rows = g.forward.x.rows.dim(0), heads = g.forward.x.head_dim;
  expect_counted_heads(op, "dx", g.dx, dtype, rows, 1, heads);
  expect_tensor(op, "ddecay", g.ddecay, DType::f32, {rows, heads});
  expect_tensor(op, "dstep", g.dstep, DType::f32, {rows, heads});
  SO_CHECK(static_cast<bool>(g.da_log) == static_cast<bool>(g.ddt_bias), "{}: da_log and ddt_bias go together", op);
  if (!g.da_log) return;
  expect_gradient(op, "da_log", g.da_log, dtype, {heads});
  expect_gradient(op, "ddt_bias", g.ddt_bias, dtype, {heads});
}

StateSpaceSize expect_state_space(const char* op, const Ops::StateSpace& s) {
  const StateSpaceSize size = expect_state_space_inputs(op, s);
  expect_counted_heads(op, "out", s.out, size.dtype, size.rows, size.heads, size.v_dim);
  if (s.state) {
    SO_CHECK(size.documents == 1, "{}: {} documents are continued, not one", op, size.documents);
    expect_tensor(op, "state", s.state, DType::f32, {size.heads, size.k_dim, size.v_dim});
  }
  return size;
}

StateSpaceSize expect_state_space_grad(const char* op, const Ops::StateSpaceGrad& g) {
  const StateSpaceSize size = expect_state_space_inputs(op, g.forward);
  SO_CHECK(!g.forward.state, "{}: a continued document has no gradient", op);
  expect_counted_heads(op, "dout", g.dout, size.dtype, size.rows, size.heads, size.v_dim);
  expect_counted_heads(op, "dx", g.dx, size.dtype, size.rows, size.heads, size.v_dim);
  SO_CHECK(!g.dx.rows || g.dx.rows.data() != g.dout.rows.data() || g.dx.offset != g.dout.offset,
           "{}: dx must not be dout: b's and c's gradients read it", op);
  expect_counted_heads(op, "db", g.db, size.dtype, size.rows, size.groups, size.k_dim);
  expect_counted_heads(op, "dc", g.dc, size.dtype, size.rows, size.groups, size.k_dim);
  expect_tensor(op, "ddecay", g.ddecay, DType::f32, {size.rows, size.heads});
  expect_tensor(op, "dstep", g.dstep, DType::f32, {size.rows, size.heads});
  if (g.dskip) expect_gradient(op, "dskip", g.dskip, size.dtype, {size.heads});
  return size;
}

}  // namespace so
