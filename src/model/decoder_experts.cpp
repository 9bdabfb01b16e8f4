// The mixture of experts of a decoder layer, forward and backward. A pair's weight goes onto the activation between the
// two products: y = w (W a + b) is W (w a) + w b, so that what comes out of the experts need only be added up, and the
// weight's gradient <dy, W a + b> is <W^T dy, a> + <dy, b>, for which that output need not be there.
#include "model/decoder.h"
#include "model/decoder_activations.h"
#include "model/decoder_gradients.h"

namespace so {
namespace {

Tensor by_expert(const ExpertSpec& x, Tensor weight, std::int64_t in, std::int64_t out) {
  return x.layout == ExpertLayout::in_out ? weight.reshape({x.count, in, out}) : weight.reshape({x.count, out, in});
}

}  // namespace

Decoder::RouterLoad Decoder::acquire_load(Arena& arena) const {
  if (spec_.experts.balance == 0) return {};
  const std::int64_t experts = spec_.experts.count;
  const Tensor both = arena.acquire("router load", DType::f32, {2 * experts});
  return {both.rows(0, experts), both.rows(experts, experts), both};
}

// The loss is balance * E * sum over e of (counts[e] / rows) * (shares[e] / rows), with a row for each token of each
// layer with experts.
double Decoder::router_loss_scale(std::int64_t tokens) const {
  const auto rows = static_cast<double>(tokens * spec_.expert_layers());
  return spec_.experts.balance * static_cast<double>(spec_.experts.count) / (rows * rows);
}

void Decoder::add_router_loss(const Pass& pass, Tensor losses) const {
  if (!pass.load.counts) return;
  // The loss is one of all tokens, and not the sum of the slices'.
  if (pass.batch.is_slice()) {
    Arena::Scope scope(pass.arena);
    const Tensor both = pass.load.both;
    exchange_->add_up(pass.stream, both,
                      pass.arena.acquire("router load of ranks", DType::f32, {exchange_->size() - 1, both.size()}));
  }
  ops_.add_router_loss(pass.stream, losses, pass.batch.targets, pass.load.counts, pass.load.shares,
                       static_cast<float>(router_loss_scale(pass.batch.all_tokens())));
}

void Decoder::route(const Pass& pass, std::int64_t layer, const Activations& a) const {
  const ParameterIndex::Layer& p = index(layer);
  ops_.linear(pass.stream, a.router_logits, a.normed2, pass.weight(p.router), pass.weight(p.router_bias),
              Accumulate::overwrite);
  ops_.route(pass.stream, a.routing, a.router_logits, spec_.experts.renormalized);
}

void Decoder::experts_forward(const Pass& pass, std::int64_t layer, const Activations& a, Tensor out,
                              bool first_rows) const {
  const ParameterIndex::Layer& p = index(layer);
  const ExpertSpec& x = spec_.experts;
  const std::int64_t h = spec_.hidden, f = x.intermediate;
  Stream& stream = pass.stream;
  route(pass, layer, a);
  if (pass.load.counts) {
    bool first = first_rows;
    for (std::int64_t before = 0; before < layer; ++before) first = first && !spec_.layer(before).experts;
    ops_.router_load(stream, pass.load.counts, pass.load.shares, a.routing, a.router_logits,
                     first ? Accumulate::overwrite : Accumulate::add);
  }
  // One buffer is the experts' input, and then their output.
  const Tensor rows = pass.arena.acquire("rows of experts", settings_.formats.activations, {a.gate_up.dim(0), h});
  ops_.gather_rows(stream, rows, a.normed2, a.routing);
  ops_.expert_linear(stream, a.gate_up, rows, by_expert(x, pass.weight(p.gate_up), h, 2 * f), x.layout,
                     a.routing.offsets);
  ops_.expert_activation(stream, a.activated, a.gate_up, pass.weight(p.gate_up_bias), x.activation, a.routing);
  ops_.expert_linear(stream, rows, a.activated, by_expert(x, pass.weight(p.down), f, h), x.layout, a.routing.offsets);
  ops_.sum_rows(stream, out, rows, pass.weight(p.down_bias), a.routing);
}

void Decoder::experts_backward(const Pass& pass, std::int64_t layer, GradientSink& gradients, Activations& a,
                               Tensor dnormed, Tensor dout) const {
  const ParameterIndex::Layer& p = index(layer);
  const ExpertSpec& x = spec_.experts;
  const DType t = settings_.formats.activations;
  const std::int64_t n = dout.dim(0), h = spec_.hidden, f = x.intermediate, pairs = n * x.per_token;
  Stream& stream = pass.stream;
  Arena& arena = pass.arena;
  if (!a.router_logits) {
    complete_routing(arena, n, a);
    route(pass, layer, a);
  }
  const Tensor w_gate_up = by_expert(x, pass.weight(p.gate_up), h, 2 * f),
               w_down = by_expert(x, pass.weight(p.down), f, h), gate_up_bias = pass.weight(p.gate_up_bias),
               down_bias = pass.weight(p.down_bias);
  // One buffer is in turn the experts' input, the gradient of their output, their input again, and its gradient: a
  // gather costs less than the memory of another.
  const Tensor rows = arena.acquire("rows of experts", t, {pairs, h});
  if (!a.gate_up) {
    a.gate_up = arena.acquire("gate and up", t, {pairs, 2 * f});
    ops_.gather_rows(stream, rows, a.normed2, a.routing);
    ops_.expert_linear(stream, a.gate_up, rows, w_gate_up, x.layout, a.routing.offsets);
  }

  const Tensor dweights = arena.acquire("gradient of routing weights", DType::f32, {pairs});
  const Tensor dactivated = arena.acquire("gradient of activated", t, {pairs, f});
  ops_.gather_rows(stream, rows, dout, a.routing);
  ops_.expert_linear_grad_input(stream, dactivated, rows, w_down, x.layout, a.routing.offsets);
  if (down_bias) {
    ops_.expert_bias_dot(stream, dweights, dout, down_bias, a.routing);
    const auto db = gradients.gradient(p.down_bias.first);
    if (db.tensor) ops_.expert_bias_grad(stream, db.tensor, rows, a.routing, true, db.mode);
  }
  const Tensor dgate_up = a.gate_up, activated = dactivated;
  ops_.expert_activation_grad(stream, {.dgate_up = dgate_up,
                                       .dweights = dweights,
                                       .activated = activated,
                                       .dout = dactivated,
                                       .gate_up = a.gate_up,
                                       .bias = gate_up_bias,
                                       .activation = x.activation,
                                       .routing = a.routing,
                                       .dweights_mode = down_bias ? Accumulate::add : Accumulate::overwrite});
  const auto grad_experts = [&](Joined parameter, Tensor dy, Tensor input, std::int64_t in, std::int64_t out) {
    const auto dw = gradients.gradient(parameter.first, parameter.count);
    if (!dw.tensor) return;
    ops_.expert_linear_grad_weight(stream, by_expert(x, dw.tensor, in, out), dy, input, x.layout, a.routing.offsets,
                                   dw.mode);
  };
  grad_experts(p.down, rows, activated, f, h);
  ops_.gather_rows(stream, rows, a.normed2, a.routing);
  grad_experts(p.gate_up, dgate_up, rows, h, 2 * f);
  if (gate_up_bias) {
    const auto db = gradients.gradient(p.gate_up_bias.first);
    if (db.tensor) ops_.expert_bias_grad(stream, db.tensor, dgate_up, a.routing, false, db.mode);
  }
  ops_.expert_linear_grad_input(stream, rows, dgate_up, w_gate_up, x.layout, a.routing.offsets);
  ops_.sum_rows(stream, dnormed, rows, Tensor(), a.routing);

  // Every trained token's loss includes the router's, so its gradient has the weight of them all.
  const double balance =
      pass.load.counts ? router_loss_scale(pass.batch.all_tokens()) * static_cast<double>(pass.batch.trained) : 0;
  const Tensor dlogits = arena.acquire("gradient of router logits", t, {n, x.count});
  ops_.route_grad(stream, dlogits, dweights, a.routing, a.router_logits, x.renormalized, pass.load.counts,
                  static_cast<float>(balance * static_cast<double>(pass.grad_scale)));
  ops_.linear_grad_input(stream, dnormed, dlogits, pass.weight(p.router), Accumulate::add);
  grad_linear(ops_, stream, gradients, p.router, p.router_bias, dlogits, a.normed2);
}

}  // namespace so
