#include "model/decoder/shared_expert.h"

#include "base/error.h"
#include "model/decoder/gradients.h"

namespace so {

SharedExpert::SharedExpert(const DecoderContext& context, std::int64_t layer)
    : context_(context),
      width_(context.spec.experts.shared_intermediate),
      activation_(context.spec.gate),
      gated_(context.spec.experts.shared_gate),
      ops_(context.ops),
      p_(context.parameters(layer)) {
  SO_CHECK(!gated_ || activation_ == MlpActivation::silu, "a gate of a shared expert without SiLU");
}

void SharedExpert::complete_gate_up(Arena& arena, std::int64_t n, LayerActivations& a) const {
  acquire_if_empty(arena, a.shared_gate_up, "gate and up of the shared expert", context_.activations(),
                   {n, inputs_of(activation_) * width_});
  if (gated_) acquire_if_empty(arena, a.shared_gates, "gates of the shared expert", DType::f32, {n});
}

void SharedExpert::complete(Arena& arena, std::int64_t n, LayerActivations& a) const {
  complete_gate_up(arena, n, a);
  acquire_if_empty(arena, a.shared_activated, "activated of the shared expert", context_.activations(), {n, width_});
}

void SharedExpert::project(const DecoderPass& pass, const LayerActivations& a) const {
  ops_.linear(pass.stream, a.shared_gate_up, a.normed2.values, pass.weight(p_.shared_gate_up), Tensor(),
              Accumulate::overwrite);
  if (gated_) ops_.row_gate(pass.stream, a.shared_gates, a.normed2.values, pass.weight(p_.shared_output_gate));
}

void SharedExpert::forward(const DecoderPass& pass, const LayerActivations& a, Tensor out) const {
  project(pass, a);
  if (gated_)
    ops_.expert_activation(pass.stream, a.shared_activated, a.shared_gate_up, Tensor(), ExpertActivation(),
                           {.weights = a.shared_gates});
  else
    ops_.swiglu(pass.stream, a.shared_activated, a.shared_gate_up, activation_);
  ops_.linear(pass.stream, out, a.shared_activated, pass.weight(p_.shared_down), Tensor(), Accumulate::add);
}

Tensor SharedExpert::backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations& a,
                              Tensor dout) const {
  const std::int64_t n = dout.dim(0);
  Stream& stream = pass.stream;
  Arena& arena = pass.arena;
  if (!a.shared_gate_up) {
    complete_gate_up(arena, n, a);
    project(pass, a);
  }
  const Tensor dgates = gated_ ? arena.acquire("gradient of the gates", DType::f32, {n}) : Tensor();
  Arena::Scope scope(arena);
  const Tensor activated = arena.acquire("gradient of activated", context_.activations(), {n, width_});
  ops_.linear_grad_input(stream, activated, dout, pass.weight(p_.shared_down), Accumulate::overwrite);
  if (gated_)
    ops_.expert_activation_grad(stream, {.dgate_up = a.shared_gate_up,
                                         .dweights = dgates,
                                         .activated = activated,
                                         .dout = activated,
                                         .gate_up = a.shared_gate_up,
                                         .routing = {.weights = a.shared_gates}});
  else
    ops_.swiglu_grad(stream, a.shared_gate_up, activated, a.shared_gate_up, activated, activation_);
  grad_linear(ops_, stream, gradients, p_.shared_down, Joined(), dout, activated);
  return dgates;
}

void SharedExpert::backward_to_input(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a,
                                     Tensor dgates, Tensor dnormed) const {
  Stream& stream = pass.stream;
  ops_.linear_grad_input(stream, dnormed, a.shared_gate_up, pass.weight(p_.shared_gate_up), Accumulate::add);
  grad_linear(ops_, stream, gradients, p_.shared_gate_up, Joined(), a.shared_gate_up, a.normed2.values);
  if (!gated_) return;
  const auto dw = gradients.gradient(p_.shared_output_gate.first);
  ops_.row_gate_grad(stream, {.dx = dnormed,
                              .dweight = dw.tensor,
                              .dweight_mode = dw.mode,
                              .dgates = dgates,
                              .gates = a.shared_gates,
                              .x = a.normed2.values,
                              .weight = pass.weight(p_.shared_output_gate)});
}

}  // namespace so
