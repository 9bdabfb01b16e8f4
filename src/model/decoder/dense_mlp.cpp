#include "model/decoder/dense_mlp.h"

#include "model/decoder/gradients.h"

namespace so {

DenseMlp::DenseMlp(const DecoderContext& context, std::int64_t layer)
    : context_(context), ops_(context.ops), p_(context.parameters(layer)) {}

void DenseMlp::complete_gate_up(Arena& arena, std::int64_t n, LayerActivations& a) const {
  acquire_if_empty(arena, a.gate_up, "gate and up", context_.activations(), {n, 2 * context_.spec.intermediate});
}

void DenseMlp::complete(Arena& arena, std::int64_t n, LayerActivations& a) const {
  complete_gate_up(arena, n, a);
  acquire_if_empty(arena, a.activated, "activated", context_.activations(), {n, context_.spec.intermediate});
}

void DenseMlp::project(const DecoderPass& pass, const LayerActivations& a) const {
  ops_.linear(pass.stream, a.gate_up, a.normed2, pass.weight(p_.gate_up), pass.weight(p_.gate_up_bias),
              Accumulate::overwrite);
}

void DenseMlp::forward(const DecoderPass& pass, const LayerActivations& a, Tensor out, bool) const {
  project(pass, a);
  ops_.swiglu(pass.stream, a.activated, a.gate_up, context_.spec.gate);
  ops_.linear(pass.stream, out, a.activated, pass.weight(p_.down), pass.weight(p_.down_bias), Accumulate::overwrite);
}

void DenseMlp::backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations& a, Tensor dnormed,
                        Tensor dout) const {
  const std::int64_t n = dout.dim(0);
  Stream& stream = pass.stream;
  if (!a.gate_up) {
    complete_gate_up(pass.arena, n, a);
    project(pass, a);
  }
  Tensor dactivated =
      pass.arena.acquire("gradient of activated", context_.activations(), {n, context_.spec.intermediate});
  ops_.linear_grad_input(stream, dactivated, dout, pass.weight(p_.down), Accumulate::overwrite);
  Tensor dgate_up = a.gate_up;
  ops_.swiglu_grad(stream, dgate_up, dactivated, a.gate_up, a.activated ? Tensor() : dactivated, context_.spec.gate);
  grad_linear(ops_, stream, gradients, p_.down, p_.down_bias, dout, a.activated ? a.activated : dactivated);
  ops_.linear_grad_input(stream, dnormed, dgate_up, pass.weight(p_.gate_up), Accumulate::overwrite);
  grad_linear(ops_, stream, gradients, p_.gate_up, p_.gate_up_bias, dgate_up, a.normed2);
}

}  // namespace so
