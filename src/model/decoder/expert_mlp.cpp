#include "model/decoder/expert_mlp.h"

#include "base/error.h"
#include "model/decoder/gradients.h"
#include "model/decoder/router_loss.h"

namespace so {
namespace {

bool has_experts_below(const DecoderSpec& spec, std::int64_t layer) {
  for (std::int64_t below = 0; below < layer; ++below)
    if (spec.layer(below).experts) return true;
  return false;
}

}  // namespace

ExpertMlp::ExpertMlp(const DecoderContext& context, std::int64_t layer)
    : context_(context),
      experts_(context.spec.experts),
      ops_(context.ops),
      p_(context.parameters(layer)),
      layer_(layer),
      inputs_(inputs_of(experts_.activation) * experts_.intermediate),
      lowest_(!has_experts_below(context.spec, layer)) {
  // MlpBlock makes an output that a norm reads again by a second forward(), which would count the router's load twice.
  SO_CHECK(!context.spec.output_norms || experts_.balance == 0, "a router's loss, and norms of what experts add");
  SO_CHECK(experts_.balance == 0 || experts_.scores == RouterRule::Scores::softmax, "a balance of sigmoids");
  if (experts_.shared_intermediate > 0 && !experts_.shared_apart) shared_.emplace(context, layer);
}

std::vector<Joined> ExpertMlp::parameters() const {
  std::vector<Joined> all{p_.down,   p_.down_bias,   p_.gate_up,     p_.gate_up_bias,
                          p_.router, p_.router_bias, p_.expert_scale};
  if (shared_)
    for (const Joined& parameter : shared_->parameters()) all.push_back(parameter);
  return all;
}

Tensor ExpertMlp::by_expert(Tensor weight, std::int64_t in, std::int64_t out) const {
  return experts_.layout == ExpertLayout::in_out ? weight.reshape({experts_.count, in, out})
                                                 : weight.reshape({experts_.count, out, in});
}

void ExpertMlp::complete_routing(Arena& arena, std::int64_t n, LayerActivations& a) const {
  const std::int64_t choices = experts_.per_token, pairs = n * choices, experts = experts_.count;
  acquire_if_empty(arena, a.router_logits, "router logits", DType::f32, {n, experts});
  acquire_if_empty(arena, a.routing.experts, "routing", DType::i32, {n, choices});
  acquire_if_empty(arena, a.routing.rows, "routing", DType::i32, {n, choices});
  acquire_if_empty(arena, a.routing.pairs, "routing", DType::i32, {pairs});
  acquire_if_empty(arena, a.routing.weights, "routing", DType::f32, {pairs});
  acquire_if_empty(arena, a.routing.offsets, "routing", DType::i32, {experts + 1});
  if (p_.expert_scale) acquire_if_empty(arena, a.scaled_weights, "routing", DType::f32, {pairs});
}

void ExpertMlp::complete_gate_up(Arena& arena, std::int64_t n, LayerActivations& a) const {
  acquire_if_empty(arena, a.gate_up, "gate and up", context_.activations(), {n * experts_.per_token, inputs_});
  if (shared_) shared_->complete_gate_up(arena, n, a);
}

void ExpertMlp::complete(Arena& arena, std::int64_t n, LayerActivations& a) const {
  complete_routing(arena, n, a);
  complete_gate_up(arena, n, a);
  acquire_if_empty(arena, a.activated, "activated", context_.activations(),
                   {n * experts_.per_token, experts_.intermediate});
  if (shared_) shared_->complete(arena, n, a);
}

RouterRule ExpertMlp::rule() const {
  const Tensor& biases = context_.selection_biases;
  return {.scores = experts_.scores,
          .renormalized = experts_.renormalized,
          .scale = static_cast<float>(experts_.scale),
          .selection_bias = biases ? biases.rows(layer_ * experts_.count, experts_.count) : Tensor()};
}

void ExpertMlp::route(const DecoderPass& pass, const LayerActivations& a) const {
  ops_.linear(pass.stream, a.router_logits, router_input(a), pass.weight(p_.router), pass.weight(p_.router_bias),
              Accumulate::overwrite);
  if (const auto scale = static_cast<float>(experts_.router_scale); scale != 1)
    ops_.add_scaled(pass.stream, a.router_logits, Tensor(), a.router_logits, scale);
  ops_.route(pass.stream, a.routing, a.router_logits, rule());
  if (p_.expert_scale) ops_.scale_experts(pass.stream, a.scaled_weights, pass.weight(p_.expert_scale), a.routing);
}

Routing ExpertMlp::scaled(const LayerActivations& a) const {
  Routing routing = a.routing;
  if (p_.expert_scale) routing.weights = a.scaled_weights;
  return routing;
}

void ExpertMlp::forward(const DecoderPass& pass, const LayerActivations& a, Tensor out, bool first_rows) const {
  const std::int64_t h = context_.spec.hidden, f = experts_.intermediate;
  Stream& stream = pass.stream;
  route(pass, a);
  if (pass.load.counts)
    ops_.router_load(stream, pass.load.counts, pass.load.shares, a.routing, a.router_logits,
                     lowest_ && first_rows ? Accumulate::overwrite : Accumulate::add);
  // One buffer is the experts' input, and then their output.
  const Tensor rows = pass.arena.acquire("rows of experts", context_.activations(), {a.gate_up.dim(0), h});
  ops_.gather_rows(stream, rows, a.normed2.values, a.routing);
  ops_.expert_linear(stream, a.gate_up, rows, by_expert(pass.weight(p_.gate_up), h, inputs_), experts_.layout,
                     a.routing.offsets);
  ops_.expert_activation(stream, a.activated, a.gate_up, pass.weight(p_.gate_up_bias), experts_.activation, scaled(a));
  ops_.expert_linear(stream, rows, a.activated, by_expert(pass.weight(p_.down), f, h), experts_.layout,
                     a.routing.offsets);
  ops_.sum_rows(stream, out, rows, pass.weight(p_.down_bias), scaled(a));
  if (shared_) shared_->forward(pass, a, out);
}

void ExpertMlp::backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations& a, Tensor dnormed,
                         Tensor dout, Tensor) const {
  const DType t = context_.activations();
  const std::int64_t n = dout.dim(0), h = context_.spec.hidden, f = experts_.intermediate,
                     pairs = n * experts_.per_token;
  Stream& stream = pass.stream;
  Arena& arena = pass.arena;
  if (!a.router_logits) {
    complete_routing(arena, n, a);
    route(pass, a);
  }
  const Tensor dgates = shared_ ? shared_->backward(pass, gradients, a, dout) : Tensor();
  const Tensor w_gate_up = by_expert(pass.weight(p_.gate_up), h, inputs_),
               w_down = by_expert(pass.weight(p_.down), f, h), gate_up_bias = pass.weight(p_.gate_up_bias),
               down_bias = pass.weight(p_.down_bias);
  // One buffer is in turn the experts' input, the gradient of their output, their input again, and its gradient: a
  // gather costs less than the memory of another.
  const Tensor rows = arena.acquire("rows of experts", t, {pairs, h});
  if (!a.gate_up) {
    a.gate_up = arena.acquire("gate and up", t, {pairs, inputs_});
    ops_.gather_rows(stream, rows, a.normed2.values, a.routing);
    ops_.expert_linear(stream, a.gate_up, rows, w_gate_up, experts_.layout, a.routing.offsets);
  }

  const Tensor dweights = arena.acquire("gradient of routing weights", DType::f32, {pairs});
  const Tensor dactivated = arena.acquire("gradient of activated", t, {pairs, f});
  ops_.gather_rows(stream, rows, dout, a.routing);
  ops_.expert_linear_grad_input(stream, dactivated, rows, w_down, experts_.layout, a.routing.offsets);
  if (down_bias) {
    ops_.expert_bias_dot(stream, dweights, dout, down_bias, a.routing);
    const auto db = gradients.gradient(p_.down_bias.first);
    if (db.tensor) ops_.expert_bias_grad(stream, db.tensor, rows, scaled(a), true, db.mode);
  }
  const Tensor dgate_up = a.gate_up, activated = dactivated;
  ops_.expert_activation_grad(stream, {.dgate_up = dgate_up,
                                       .dweights = dweights,
                                       .activated = activated,
                                       .dout = dactivated,
                                       .gate_up = a.gate_up,
                                       .bias = gate_up_bias,
                                       .activation = experts_.activation,
                                       .routing = scaled(a),
                                       .dweights_mode = down_bias ? Accumulate::add : Accumulate::overwrite});
  const auto grad_experts = [&](Joined parameter, Tensor dy, Tensor input, std::int64_t in, std::int64_t out) {
    const auto dw = gradients.gradient(parameter.first, parameter.count);
    if (!dw.tensor) return;
    ops_.expert_linear_grad_weight(stream, by_expert(dw.tensor, in, out), dy, input, experts_.layout, a.routing.offsets,
                                   dw.mode);
  };
  grad_experts(p_.down, rows, activated, f, h);
  ops_.gather_rows(stream, rows, a.normed2.values, a.routing);
  grad_experts(p_.gate_up, dgate_up, rows, h, inputs_);
  if (gate_up_bias) {
    const auto db = gradients.gradient(p_.gate_up_bias.first);
    if (db.tensor) ops_.expert_bias_grad(stream, db.tensor, dgate_up, a.routing, false, db.mode);
  }
  ops_.expert_linear_grad_input(stream, rows, dgate_up, w_gate_up, experts_.layout, a.routing.offsets);
  ops_.sum_rows(stream, dnormed, rows, Tensor(), a.routing);
  if (shared_) shared_->backward_to_input(pass, gradients, a, dgates, dnormed);

  if (p_.expert_scale) {
    const Tensor scale = pass.weight(p_.expert_scale);
    const auto dscale = vector_gradient(gradients, arena, p_.expert_scale, scale);
    ops_.scale_experts_grad(stream, {.dweights = dweights,
                                     .dscale = dscale.tensor,
                                     .dscale_mode = dscale.mode,
                                     .dout = dweights,
                                     .scale = scale,
                                     .routing = a.routing});
  }
  // Every trained token's loss includes the router's, so its gradient has the weight of them all.
  const double balance =
      pass.load.counts ? router_loss_scale(context_, pass.batch.all_tokens()) * static_cast<double>(pass.batch.trained)
                       : 0;
  const Tensor dlogits = arena.acquire("gradient of router logits", t, {n, experts_.count});
  ops_.route_grad(stream, dlogits, dweights, a.routing, a.router_logits, rule(), pass.load.counts,
                  static_cast<float>(balance * static_cast<double>(pass.grad_scale)));
  if (const auto scale = static_cast<float>(experts_.router_scale); scale != 1)
    ops_.add_scaled(stream, dlogits, Tensor(), dlogits, scale);
  grad_linear(ops_, stream, gradients, p_.router, p_.router_bias, dlogits, router_input(a));
  ops_.linear_grad_input(stream, a.router_input ? a.router_input : dnormed, dlogits, pass.weight(p_.router),
                         a.router_input ? Accumulate::overwrite : Accumulate::add);
}

}  // namespace so
