#include "ops/delta_checks.h"

#include "ops/checks.h"

namespace so {
namespace {

bool same_place(const Heads& a, const Heads& b) {
  return a.rows.data() == b.rows.data() && a.offset == b.offset && a.rows;
}

// One weight for all heads, of `columns`, or one a column of all.
void expect_head_norm(const char* op, const Heads& x, const HeadNorm& norm, std::int64_t columns) {
  expect_tensor(op, "norm.weight", norm.weight, x.rows.dtype(), {columns});
  expect_tensor(op, "norm.inv_rms", norm.inv_rms, DType::f32, {x.rows.dim(0), x.heads});
}

void expect_norm_and_gate(const char* op, const Heads& out, const Heads& x, const Heads& gate, const HeadNorm& norm,
                          std::int64_t weights) {
  expect_compute_dtype(op, "x", x.rows.dtype());
  expect_same_heads(op, "x", x, "out", out);
  expect_same_heads(op, "x", x, "gate", gate);
  expect_head_norm(op, x, norm, weights);
  SO_CHECK(!same_place(out, x), "{}: x must not be overwritten: the backward pass reads it", op);
}

template <class Grad>
void expect_norm_and_gate_grad(const char* op, const Grad& g, std::int64_t weights) {
  expect_compute_dtype(op, "x", g.x.rows.dtype());
  expect_same_heads(op, "x", g.x, "dout", g.dout);
  expect_same_heads(op, "x", g.x, "gate", g.gate);
  expect_same_heads(op, "x", g.x, "dx", g.dx);
  expect_same_heads(op, "x", g.x, "dgate", g.dgate);
  if (g.normed.rows) expect_same_heads(op, "x", g.x, "normed", g.normed);
  expect_head_norm(op, g.x, g.norm, weights);
  expect_gradient(op, "dweight", g.dweight, g.x.rows.dtype(), {weights});
}

// What forward and backward pass read.
ConvSize expect_conv_inputs(const char* op, const Ops::CausalConv& c) {
  SO_CHECK(c.x.rows.rank() == 2, "{}: x has rows {}, not [N, width]", op, shape_string(c.x.rows.shape()));
  const DType dtype = c.x.rows.dtype();
  expect_compute_dtype(op, "x", dtype);
  SO_CHECK(c.weight.rank() == 3 && c.weight.dim(2) >= 1 && c.weight.dim(2) <= kMaxTaps,
           "{}: weight is {}, not [C, 1, K] with K from 1 to {}", op, shape_string(c.weight.shape()), kMaxTaps);
  const ConvSize size{c.x.rows.dim(0), c.x.head_dim, c.weight.dim(2)};
  expect_counted_heads(op, "x", c.x, dtype, size.rows, 1, size.channels);
  expect_tensor(op, "weight", c.weight, dtype, {size.channels, 1, size.taps});
  if (c.bias) expect_tensor(op, "bias", c.bias, dtype, {size.channels});
  expect_documents(op, c.documents);
  return size;
}

void expect_delta_gate_inputs(const char* op, const Ops::DeltaGates& g) {
  SO_CHECK(g.a.rows.rank() == 2, "{}: a has rows {}, not [N, width]", op, shape_string(g.a.rows.shape()));
  const DType dtype = g.a.rows.dtype();
  expect_compute_dtype(op, "a", dtype);
  const std::int64_t rows = g.a.rows.dim(0), heads = g.a.head_dim;
  expect_counted_heads(op, "a", g.a, dtype, rows, 1, heads);
  expect_counted_heads(op, "b", g.b, dtype, rows, 1, heads);
  expect_tensor(op, "a_log", g.a_log, dtype, {heads});
  expect_tensor(op, "dt_bias", g.dt_bias, dtype, {heads});
}

DeltaSize expect_delta_inputs(const char* op, const Ops::DeltaRule& a) {
  SO_CHECK(a.q.rows.rank() == 2, "{}: q has rows {}, not [N, width]", op, shape_string(a.q.rows.shape()));
  const DType dtype = a.q.rows.dtype();
  expect_compute_dtype(op, "q", dtype);
  const std::int64_t rows = a.q.rows.dim(0);
  expect_heads(op, "q", a.q, dtype, rows);
  expect_counted_heads(op, "k", a.k, dtype, rows, a.q.heads, a.q.head_dim);
  expect_heads(op, "v", a.v, dtype, rows);
  SO_CHECK(a.v.heads % a.k.heads == 0, "{}: {} value heads on {} key heads", op, a.v.heads, a.k.heads);
  expect_tensor(op, "decay", a.decay, DType::f32, {rows, a.v.heads});
  expect_tensor(op, "rate", a.rate, DType::f32, {rows, a.v.heads});
  expect_documents(op, a.documents);
  return {rows, a.documents.count, a.k.heads, a.v.heads, a.k.head_dim, a.v.head_dim, dtype};
}

}  // namespace

void expect_sigmoid_gate(const char* op, const Heads& out, const Heads& x, const Heads& gate) {
  expect_compute_dtype(op, "x", x.rows.dtype());
  expect_same_heads(op, "x", x, "out", out);
  expect_same_heads(op, "x", x, "gate", gate);
}

void expect_sigmoid_gate_grad(const char* op, const Ops::SigmoidGateGrad& g) {
  expect_sigmoid_gate(op, g.dout, g.x, g.gate);
  expect_same_heads(op, "x", g.x, "dx", g.dx);
  expect_same_heads(op, "x", g.x, "dgate", g.dgate);
  if (g.gated.rows) expect_same_heads(op, "x", g.x, "gated", g.gated);
}

void expect_gated_norm(const char* op, const Heads& out, const Heads& x, const Heads& gate, const HeadNorm& norm) {
  expect_norm_and_gate(op, out, x, gate, norm, x.head_dim);
}

void expect_gated_norm_grad(const char* op, const Ops::GatedNormGrad& g) {
  expect_norm_and_gate_grad(op, g, g.x.head_dim);
}

void expect_gate_then_norm(const char* op, const Heads& out, const Heads& x, const Heads& gate, const HeadNorm& norm) {
  expect_norm_and_gate(op, out, x, gate, norm, x.heads * x.head_dim);
}

void expect_gate_then_norm_grad(const char* op, const Ops::GateThenNormGrad& g) {
  expect_norm_and_gate_grad(op, g, g.x.heads * g.x.head_dim);
}

ConvSize expect_causal_conv(const char* op, const Ops::CausalConv& c) {
  const ConvSize size = expect_conv_inputs(op, c);
  expect_counted_heads(op, "out", c.out, c.x.rows.dtype(), size.rows, 1, size.channels);
  SO_CHECK(!same_place(c.out, c.x), "{}: out must not be x: later rows read it", op);
  if (c.before) {
    SO_CHECK(c.documents.count == 1, "{}: {} documents are continued, not one", op, c.documents.count);
    expect_tensor(op, "before", c.before, c.x.rows.dtype(), {size.taps - 1, size.channels});
  }
  return size;
}

ConvSize expect_causal_conv_grad(const char* op, const Ops::CausalConvGrad& g) {
  const ConvSize size = expect_conv_inputs(op, g.forward);
  const DType dtype = g.forward.x.rows.dtype();
  SO_CHECK(!g.forward.before, "{}: a continued document has no gradient", op);
  expect_counted_heads(op, "dout", g.dout, dtype, size.rows, 1, size.channels);
  expect_counted_heads(op, "dx", g.dx, dtype, size.rows, 1, size.channels);
  SO_CHECK(!same_place(g.dx, g.dout) && !same_place(g.dx, g.forward.x),
           "{}: dx must be neither dout nor x: other rows read them", op);
  expect_gradient(op, "dweight", g.dweight, dtype, {size.channels, 1, size.taps});
  SO_CHECK(static_cast<bool>(g.dbias) == static_cast<bool>(g.forward.bias), "{}: dbias goes with bias", op);
  if (g.dbias) expect_gradient(op, "dbias", g.dbias, dtype, {size.channels});
  return size;
}

void expect_delta_gates(const char* op, const Ops::DeltaGates& g) {
  expect_delta_gate_inputs(op, g);
  expect_tensor(op, "decay", g.decay, DType::f32, {g.a.rows.dim(0), g.a.head_dim});
  expect_tensor(op, "rate", g.rate, DType::f32, {g.a.rows.dim(0), g.a.head_dim});
}

void expect_delta_gates_grad(const char* op, const Ops::DeltaGatesGrad& g) {
  expect_delta_gate_inputs(op, g.forward);
  const DType dtype = g.forward.a.rows.dtype();
  const std::int64_t rows = g.forward.a.rows.dim(0), heads = g.forward.a.head_dim;
  expect_counted_heads(op, "da", g.da, dtype, rows, 1, heads);
  expect_counted_heads(op, "db", g.db, dtype, rows, 1, heads);
  expect_tensor(op, "ddecay", g.ddecay, DType::f32, {rows, heads});
  expect_tensor(op, "drate", g.drate, DType::f32, {rows, heads});
  SO_CHECK(static_cast<bool>(g.da_log) == static_cast<bool>(g.ddt_bias), "{}: da_log and ddt_bias go together", op);
  if (!g.da_log) return;
  expect_gradient(op, "da_log", g.da_log, dtype, {heads});
  expect_gradient(op, "ddt_bias", g.ddt_bias, dtype, {heads});
}

DeltaSize expect_delta_rule(const char* op, const Ops::DeltaRule& a) {
  const DeltaSize size = expect_delta_inputs(op, a);
  expect_counted_heads(op, "out", a.out, size.dtype, size.rows, size.v_heads, size.v_dim);
  if (a.state) {
    SO_CHECK(size.documents == 1, "{}: {} documents are continued, not one", op, size.documents);
    expect_tensor(op, "state", a.state, DType::f32, {size.v_heads, size.k_dim, size.v_dim});
  }
  return size;
}

DeltaSize expect_delta_rule_grad(const char* op, const Ops::DeltaRuleGrad& g) {
  const DeltaSize size = expect_delta_inputs(op, g.forward);
  SO_CHECK(!g.forward.state, "{}: a continued document has no gradient", op);
  expect_counted_heads(op, "dout", g.dout, size.dtype, size.rows, size.v_heads, size.v_dim);
  expect_counted_heads(op, "dq", g.dq, size.dtype, size.rows, size.k_heads, size.k_dim);
  expect_counted_heads(op, "dk", g.dk, size.dtype, size.rows, size.k_heads, size.k_dim);
  expect_counted_heads(op, "dv", g.dv, size.dtype, size.rows, size.v_heads, size.v_dim);
  expect_tensor(op, "ddecay", g.ddecay, DType::f32, {size.rows, size.v_heads});
  expect_tensor(op, "drate", g.drate, DType::f32, {size.rows, size.v_heads});
  return size;
}

}  // namespace so
