#include "model/decoder/layer_input_block.h"

#include "base/error.h"
#include "model/decoder/block_norms.h"
#include "model/decoder/gradients.h"

namespace so {

LayerInputBlock::LayerInputBlock(const DecoderContext& context, std::int64_t layer)
    : context_(context),
      ops_(context.ops),
      gate_(context.parameters(layer).layer_input_gate),
      out_(context.parameters(layer).layer_input_out),
      norm_(context.parameters(layer).layer_input_output_norm),
      width_(context.spec.layer_input),
      first_(layer * context.spec.layer_input) {
  const DecoderSpec& s = context.spec;
  SO_CHECK(width_ == 0 || (s.output_norms && s.layer_scales && s.residual_scale == 1),
           "inputs of layers without norms behind their blocks, or without scales of layers");
}

LayerInputBlock::Work LayerInputBlock::run(const DecoderPass& pass, Tensor inputs, Tensor stream) const {
  Arena& arena = pass.arena;
  const std::int64_t n = stream.dim(0);
  const DType t = context_.activations();
  Work w{.gate = arena.acquire("gate of a layer's inputs", t, {n, width_}),
         .gate_inputs = arena.acquire("gate and a layer's inputs", t, {n, 2 * width_}),
         .activated = arena.acquire("gated inputs", t, {n, width_}),
         .raw = {},
         .inv_rms = {},
         .normed = arena.acquire("normed output", t, {n, context_.spec.hidden})};
  acquire_output_norm(context_, arena, n, w.raw, w.inv_rms);
  ops_.linear(pass.stream, w.gate, stream, pass.weight(gate_), Tensor(), Accumulate::overwrite);
  ops_.copy_heads(pass.stream, columns(w.gate_inputs, 0), columns(w.gate, 0));
  ops_.copy_heads(pass.stream, columns(w.gate_inputs, width_), columns(inputs, first_));
  ops_.swiglu(pass.stream, w.activated, w.gate_inputs, context_.spec.gate);
  ops_.linear(pass.stream, w.raw, w.activated, pass.weight(out_), Tensor(), Accumulate::overwrite);
  block_output_norm(context_, pass, norm_, w.normed, w.raw, w.inv_rms);
  return w;
}

void LayerInputBlock::forward(const DecoderPass& pass, Tensor inputs, Tensor stream) const {
  Arena::Scope scope(pass.arena);
  const Work w = run(pass, inputs, stream);
  ops_.add_scaled(pass.stream, stream, stream, w.normed, 1);
}

void LayerInputBlock::backward(const DecoderPass& pass, GradientSink& gradients, Tensor inputs, Tensor stream,
                               Tensor dstream) const {
  Arena::Scope scope(pass.arena);
  const Work w = run(pass, inputs, stream);
  const Tensor draw = block_output_backward(context_, pass, gradients, norm_, w.raw, w.inv_rms, w.normed, dstream);
  const Tensor dactivated = w.gate;
  ops_.linear_grad_input(pass.stream, dactivated, draw, pass.weight(out_), Accumulate::overwrite);
  grad_linear(ops_, pass.stream, gradients, out_, {}, draw, w.activated);
  ops_.swiglu_grad(pass.stream, w.gate_inputs, dactivated, w.gate_inputs, Tensor(), context_.spec.gate);
  const Tensor dgate = w.gate;
  ops_.copy_heads(pass.stream, columns(inputs, first_), columns(w.gate_inputs, width_));
  ops_.copy_heads(pass.stream, columns(dgate, 0), columns(w.gate_inputs, 0));
  ops_.linear_grad_input(pass.stream, dstream, dgate, pass.weight(gate_), Accumulate::add);
  grad_linear(ops_, pass.stream, gradients, gate_, {}, dgate, stream);
}

}  // namespace so
