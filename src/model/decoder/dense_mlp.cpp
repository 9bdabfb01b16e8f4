#include "model/decoder/dense_mlp.h"

#include "model/decoder/gradients.h"

namespace so {

DenseMlp::DenseMlp(const DecoderContext& context, std::int64_t layer)
    : DenseMlp(context,
               {context.parameters(layer).gate_up, context.parameters(layer).gate_up_bias,
                context.parameters(layer).down, context.parameters(layer).down_bias},
               context.spec.dense_width(layer)) {}

DenseMlp::DenseMlp(const DecoderContext& context, const Weights& weights, std::int64_t intermediate)
    : context_(context), ops_(context.ops), w_(weights), intermediate_(intermediate) {}

void DenseMlp::complete_gate_up(Arena& arena, std::int64_t n, LayerActivations& a) const {
  acquire_if_empty(arena, a.gate_up, "gate and up", context_.activations(),
                   {n, inputs_of(context_.spec.gate) * intermediate_});
}

void DenseMlp::complete(Arena& arena, std::int64_t n, LayerActivations& a) const {
  complete_gate_up(arena, n, a);
  acquire_if_empty(arena, a.activated, "activated", context_.activations(), {n, intermediate_});
}

void DenseMlp::project(const DecoderPass& pass, const LayerActivations& a) const {
  ops_.linear(pass.stream, a.gate_up, a.normed2, pass.weight(w_.gate_up), pass.weight(w_.gate_up_bias),
              Accumulate::overwrite);
}

void DenseMlp::forward(const DecoderPass& pass, const LayerActivations& a, Tensor out, bool) const {
  project(pass, a);
  ops_.swiglu(pass.stream, a.activated, a.gate_up, context_.spec.gate);
  ops_.linear(pass.stream, out, a.activated, pass.weight(w_.down), pass.weight(w_.down_bias), Accumulate::overwrite);
}

void DenseMlp::backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations& a, Tensor dnormed,
                        Tensor dout, Tensor) const {
  const std::int64_t n = dout.dim(0);
  Stream& stream = pass.stream;
  if (!a.gate_up) {
    complete_gate_up(pass.arena, n, a);
    project(pass, a);
  }
  Tensor dactivated = pass.arena.acquire("gradient of activated", context_.activations(), {n, intermediate_});
  ops_.linear_grad_input(stream, dactivated, dout, pass.weight(w_.down), Accumulate::overwrite);
  Tensor dgate_up = a.gate_up;
  ops_.swiglu_grad(stream, dgate_up, dactivated, a.gate_up, a.activated ? Tensor() : dactivated, context_.spec.gate);
  grad_linear(ops_, stream, gradients, w_.down, w_.down_bias, dout, a.activated ? a.activated : dactivated);
  ops_.linear_grad_input(stream, dnormed, dgate_up, pass.weight(w_.gate_up), Accumulate::overwrite);
  grad_linear(ops_, stream, gradients, w_.gate_up, w_.gate_up_bias, dgate_up, a.normed2);
}

}  // namespace so
