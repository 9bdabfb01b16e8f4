#include "ops/expert_checks.h"

#include "ops/checks.h"

namespace so {
namespace {

// Checks that `rows` is a matrix of the compute dtype with `count` rows; returns its width.
std::int64_t expect_rows(const char* op, const char* argument, const Tensor& rows, std::int64_t count) {
  SO_CHECK(rows.rank() == 2, "{}: {} is {}", op, argument, shape_string(rows.shape()));
  expect_compute_dtype(op, argument, rows.dtype());
  expect_tensor(op, argument, rows, rows.dtype(), {count, rows.dim(1)});
  return rows.dim(1);
}

RoutingSize expect_weights(const char* op, const Tensor& weights) {
  SO_CHECK(weights.rank() == 1, "{}: routing.weights is {}", op, shape_string(weights.shape()));
  const RoutingSize size{.rows = weights.dim(0)};
  expect_tensor(op, "routing.weights", weights, DType::f32, {size.rows});
  return size;
}

}  // namespace

RoutingSize expect_routing(const char* op, const Routing& routing) {
  const auto& [experts, rows, pairs, weights, offsets] = routing;
  SO_CHECK(experts.rank() == 2 && offsets.rank() == 1, "{}: routing.experts is {}, offsets {}", op,
           shape_string(experts.shape()), shape_string(offsets.shape()));
  const RoutingSize size{experts.dim(0), experts.dim(1), offsets.dim(0) - 1, experts.size()};
  SO_CHECK(
      size.choices >= 1 && size.choices <= size.experts && size.choices <= kMaxChoices && size.experts <= kMaxExperts,
      "{}: {} of {} experts", op, size.choices, size.experts);
  SO_CHECK(size.rows < std::int64_t{1} << 31, "{}: {} rows", op, size.rows);
  expect_tensor(op, "routing.experts", experts, DType::i32, {size.tokens, size.choices});
  expect_tensor(op, "routing.rows", rows, DType::i32, {size.tokens, size.choices});
  expect_tensor(op, "routing.pairs", pairs, DType::i32, {size.rows});
  expect_tensor(op, "routing.weights", weights, DType::f32, {size.rows});
  expect_tensor(op, "routing.offsets", offsets, DType::i32, {size.experts + 1});
  return size;
}

RoutingSize expect_route(const char* op, const Routing& routing, const Tensor& logits, const RouterRule& rule) {
  const RoutingSize size = expect_routing(op, routing);
  expect_tensor(op, "logits", logits, DType::f32, {size.tokens, size.experts});
  if (const Tensor& bias = rule.selection_bias) {
    SO_CHECK(rule.scores == RouterRule::Scores::sigmoid, "{}: a bias of the selection goes with sigmoids", op);
    expect_tensor(op, "selection_bias", bias, DType::f32, {size.experts});
  }
  return size;
}

RoutingSize expect_route_grad(const char* op, const Tensor& dlogits, const Tensor& dweights, const Routing& routing,
                              const Tensor& logits, const RouterRule& rule, const Tensor& counts) {
  const RoutingSize size = expect_route(op, routing, logits, rule);
  expect_compute_dtype(op, "dlogits", dlogits.dtype());
  expect_tensor(op, "dlogits", dlogits, dlogits.dtype(), {size.tokens, size.experts});
  expect_tensor(op, "dweights", dweights, DType::f32, {size.rows});
  SO_CHECK(!counts || rule.scores == RouterRule::Scores::softmax, "{}: the balance goes with softmax", op);
  if (counts) expect_tensor(op, "counts", counts, DType::f32, {size.experts});
  return size;
}

RoutingSize expect_router_load(const char* op, const Tensor& counts, const Tensor& shares, const Routing& routing,
                               const Tensor& logits) {
  const RoutingSize size = expect_route(op, routing, logits, {});
  expect_tensor(op, "counts", counts, DType::f32, {size.experts});
  expect_tensor(op, "shares", shares, DType::f32, {size.experts});
  return size;
}

void expect_router_loss(const char* op, const Tensor& losses, const Tensor& targets, const Tensor& counts,
                        const Tensor& shares) {
  SO_CHECK(losses.rank() == 1 && counts.rank() == 1, "{}: losses {}, counts {}", op, shape_string(losses.shape()),
           shape_string(counts.shape()));
  expect_tensor(op, "losses", losses, DType::f32, {losses.dim(0)});
  expect_tensor(op, "targets", targets, DType::i32, {losses.dim(0)});
  expect_tensor(op, "counts", counts, DType::f32, {counts.dim(0)});
  expect_tensor(op, "shares", shares, DType::f32, {counts.dim(0)});
}

RoutingSize expect_gather_rows(const char* op, const Tensor& out, const Tensor& x, const Routing& routing) {
  const RoutingSize size = expect_routing(op, routing);
  const std::int64_t width = expect_rows(op, "x", x, size.tokens);
  expect_tensor(op, "out", out, x.dtype(), {size.rows, width});
  return size;
}

RoutingSize expect_sum_rows(const char* op, const Tensor& out, const Tensor& y, const Tensor& bias,
                            const Routing& routing) {
  const RoutingSize size = expect_routing(op, routing);
  const std::int64_t width = expect_rows(op, "out", out, size.tokens);
  expect_tensor(op, "y", y, out.dtype(), {size.rows, width});
  if (bias) expect_tensor(op, "bias", bias, out.dtype(), {size.experts, width});
  return size;
}

ExpertProductSize expect_expert_product(const char* op, const Tensor& x, const Tensor& y, const Tensor& w,
                                        ExpertLayout layout, const Tensor& offsets, bool w_is_gradient) {
  SO_CHECK(x.rank() == 2 && offsets.rank() == 1, "{}: {} and offsets {}", op, shape_string(x.shape()),
           shape_string(offsets.shape()));
  const std::int64_t rows = x.dim(0), in = expect_rows(op, "the input side", x, rows);
  const std::int64_t out = expect_rows(op, "the output side", y, rows), experts = offsets.dim(0) - 1;
  const bool out_in = layout == ExpertLayout::out_in;
  const std::int64_t first = out_in ? out : in, second = out_in ? in : out;
  expect_tensor(op, "the output side", y, x.dtype(), {rows, out});
  expect_tensor(op, "offsets", offsets, DType::i32, {experts + 1});
  if (w_is_gradient)
    expect_gradient(op, "dw", w, x.dtype(), {experts, first, second});
  else
    expect_tensor(op, "w", w, x.dtype(), {experts, first, second});
  return {rows, in, out, experts};
}

RoutingSize expect_expert_bias_grad(const char* op, const Tensor& dbias, const Tensor& dy, const Routing& routing) {
  const RoutingSize size = expect_routing(op, routing);
  const std::int64_t width = expect_rows(op, "dy", dy, size.rows);
  expect_gradient(op, "dbias", dbias, dy.dtype(), {size.experts, width});
  return size;
}

RoutingSize expect_expert_bias_dot(const char* op, const Tensor& dweights, const Tensor& dout, const Tensor& bias,
                                   const Routing& routing) {
  const RoutingSize size = expect_routing(op, routing);
  const std::int64_t width = expect_rows(op, "dout", dout, size.tokens);
  expect_tensor(op, "bias", bias, dout.dtype(), {size.experts, width});
  expect_tensor(op, "dweights", dweights, DType::f32, {size.rows});
  return size;
}

RoutingSize expect_scale_experts(const char* op, const Tensor& out, const Tensor& scale, const Routing& routing) {
  const RoutingSize size = expect_routing(op, routing);
  expect_compute_dtype(op, "scale", scale.dtype());
  expect_tensor(op, "scale", scale, scale.dtype(), {size.experts});
  expect_tensor(op, "out", out, DType::f32, {size.rows});
  return size;
}

RoutingSize expect_scale_experts_grad(const char* op, const Ops::ScaleExpertsGrad& g) {
  const RoutingSize size = expect_scale_experts(op, g.dout, g.scale, g.routing);
  expect_tensor(op, "dweights", g.dweights, DType::f32, {size.rows});
  expect_gradient(op, "dscale", g.dscale, g.scale.dtype(), {size.experts});
  return size;
}

RoutingSize expect_expert_activation(const char* op, const Tensor& out, const Tensor& gate_up, const Tensor& bias,
                                     const ExpertActivation& activation, const Routing& routing) {
  const bool weights_alone = !routing.experts && !bias;
  const RoutingSize size = weights_alone ? expect_weights(op, routing.weights) : expect_routing(op, routing);
  const std::int64_t width = expect_rows(op, "out", out, size.rows);
  const std::int64_t inputs = inputs_of(activation) * width;
  expect_tensor(op, "gate_up", gate_up, out.dtype(), {size.rows, inputs});
  if (bias) expect_tensor(op, "bias", bias, out.dtype(), {size.experts, inputs});
  SO_CHECK(activation.kind != ExpertActivation::Kind::clamped || activation.limit > 0, "{}: clamped to {}", op,
           activation.limit);
  return size;
}

RoutingSize expect_expert_activation_grad(const char* op, const Ops::ExpertActivationGrad& g) {
  const RoutingSize size = expect_expert_activation(op, g.dout, g.gate_up, g.bias, g.activation, g.routing);
  expect_tensor(op, "dgate_up", g.dgate_up, g.dout.dtype(), {size.rows, g.gate_up.dim(1)});
  expect_tensor(op, "activated", g.activated, g.dout.dtype(), {size.rows, g.dout.dim(1)});
  expect_tensor(op, "dweights", g.dweights, DType::f32, {size.rows});
  return size;
}

void expect_row_gate(const char* op, const Tensor& gates, const Tensor& x, const Tensor& weight) {
  SO_CHECK(x.rank() == 2, "{}: x is {}", op, shape_string(x.shape()));
  const std::int64_t width = expect_rows(op, "x", x, x.dim(0));
  expect_tensor(op, "gates", gates, DType::f32, {x.dim(0)});
  expect_tensor(op, "weight", weight, x.dtype(), {1, width});
}

void expect_row_gate_grad(const char* op, const Ops::RowGateGrad& g) {
  expect_row_gate(op, g.gates, g.x, g.weight);
  expect_tensor(op, "dx", g.dx, g.x.dtype(), {g.x.dim(0), g.x.dim(1)});
  expect_tensor(op, "dgates", g.dgates, DType::f32, {g.x.dim(0)});
  if (g.dweight) expect_gradient(op, "dweight", g.dweight, g.x.dtype(), {1, g.x.dim(1)});
}

}  // namespace so
