#include "model/decoder/dense_mlp.h"

namespace so {

DenseMlp::DenseMlp(const DecoderContext& context, std::int64_t layer)
    : DenseMlp(context, layer,
               {context.parameters(layer).gate_up, context.parameters(layer).gate_up_bias,
                context.parameters(layer).down, context.parameters(layer).down_bias},
               context.spec.dense_width(layer)) {}

DenseMlp::DenseMlp(const DecoderContext& context, std::int64_t layer, const Weights& weights, std::int64_t intermediate)
    : context_(context),
      ops_(context.ops),
      gate_up_(context, layer, weights.gate_up, weights.gate_up_bias),
      down_(context, layer, weights.down, weights.down_bias),
      intermediate_(intermediate) {}

void DenseMlp::complete_gate_up(Arena& arena, std::int64_t n, LayerActivations& a) const {
  acquire_if_empty(arena, a.gate_up, "gate and up", context_.activations(),
                   {n, inputs_of(context_.spec.gate) * intermediate_});
}

void DenseMlp::complete(Arena& arena, std::int64_t n, LayerActivations& a) const {
  complete_gate_up(arena, n, a);
  if (!down_.in_fp8()) acquire_if_empty(arena, a.activated, "activated", context_.activations(), {n, intermediate_});
}

void DenseMlp::forward(const DecoderPass& pass, const LayerActivations& a, Tensor out, bool) const {
  gate_up_.forward(pass, a.gate_up, a.normed2);
  Arena::Scope scope(pass.arena);
  ProductInput activated = a.activated;
  if (down_.in_fp8()) activated.codes = acquire_fp8(pass.arena, Fp8Matrix::Blocks::rows, out.dim(0), intermediate_);
  ops_.swiglu(pass.stream, activated.values, a.gate_up, context_.spec.gate, activated.codes);
  down_.forward(pass, out, activated);
}

void DenseMlp::backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations& a, Tensor dnormed,
                        Tensor dout, Tensor) const {
  const std::int64_t n = dout.dim(0);
  Stream& stream = pass.stream;
  if (!a.gate_up) {
    complete_gate_up(pass.arena, n, a);
    gate_up_.forward(pass, a.gate_up, a.normed2);
  }
  Tensor dactivated = pass.arena.acquire("gradient of activated", context_.activations(), {n, intermediate_});
  const ProjectionGradient of_down(down_, pass, gradients, dout);
  of_down.of_input(dactivated);
  const Tensor dgate_up = a.gate_up;
  const auto through_gate_up = [&](const ProjectionGradient& of_gate_up) {
    of_gate_up.of_input(dnormed);
    of_gate_up.of_weight(a.normed2);
  };
  if (!down_.in_fp8()) {
    ops_.swiglu_grad(stream, dgate_up, dactivated, a.gate_up, a.activated ? Tensor() : dactivated, context_.spec.gate);
    of_down.of_weight(a.activated ? a.activated : dactivated);
    return through_gate_up({gate_up_, pass, gradients, dgate_up});
  }
  const ProjectionGradient of_gate_up(gate_up_, pass, gradients, dgate_up, ProjectionGradient::RoundedByOp{});
  {
    Arena::Scope scope(pass.arena);
    const Fp8Matrix activated = of_down.acquire_columns(intermediate_);
    ops_.fp8_swiglu_grad(stream, {.rows = of_gate_up.rows(),
                                  .columns = of_gate_up.columns(),
                                  .activated = activated,
                                  .dgate_up = of_gate_up.reads_values() ? dgate_up : Tensor(),
                                  .dout = dactivated,
                                  .gate_up = a.gate_up,
                                  .activation = context_.spec.gate});
    of_down.of_weight(activated);
  }
  through_gate_up(of_gate_up);
}

}  // namespace so
