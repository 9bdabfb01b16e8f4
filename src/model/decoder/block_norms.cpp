#include "model/decoder/block_norms.h"

#include "base/error.h"
#include "model/decoder/gradients.h"
#include "model/decoder/layer_activations.h"

namespace so {

void block_input(const DecoderContext& context, const DecoderPass& pass, Joined norm, ProductInput& normed,
                 Tensor inv_rms, Tensor sum, Tensor x, Tensor delta, Joined scale) {
  const DecoderSpec& s = context.spec;
  if (delta && scale) {
    scaled_sum(context, pass, sum, x, delta, scale);
    delta = {};
  }
  if (!norm) {
    if (delta) context.ops.add_scaled(pass.stream, sum, x, delta, context.residual_scale());
    normed = sum;
    return;
  }
  const NormTerms terms{s.rms_epsilon, s.norm_offset, context.residual_scale()};
  const Tensor weight = pass.weight(norm);
  normed.norm = {sum, inv_rms, weight, terms};
  SO_CHECK(normed || !delta, "a sum for a norm that is not made");
  if (delta)
    context.ops.add_rms_norm(pass.stream, normed.values, sum, inv_rms, x, delta, weight, terms, normed.codes);
  else if (normed)
    context.ops.add_rms_norm(pass.stream, normed.values, Tensor(), inv_rms, sum, Tensor(), weight, terms, normed.codes);
}

void scaled_sum(const DecoderContext& context, const DecoderPass& pass, Tensor out, Tensor x, Tensor delta,
                Joined scale) {
  SO_CHECK(!x || context.spec.residual_scale == 1, "two scales of the residual stream");
  pass.weights.require_weights(0, pass.stream);
  context.ops.scale_sum(pass.stream, out, x, delta, pass.weight(scale));
  pass.weights.release_weights(0, pass.stream);
}

void norm_backward(const DecoderContext& context, const DecoderPass& pass, GradientSink& gradients, Joined norm,
                   Tensor x, Tensor inv_rms, Tensor dout, Tensor residual, Tensor dx) {
  const Tensor weight = pass.weight(norm);
  const auto dw = vector_gradient(gradients, pass.arena, norm, weight);
  context.ops.rms_norm_grad(pass.stream, {.dx = dx,
                                          .dweight = dw.tensor,
                                          .dout = dout,
                                          .residual = residual,
                                          .x = x,
                                          .inv_rms = inv_rms,
                                          .weight = weight,
                                          .dweight_mode = dw.mode,
                                          .weight_offset = context.spec.norm_offset});
}

void block_input_backward(const DecoderContext& context, const DecoderPass& pass, GradientSink& gradients, Joined norm,
                          Tensor sum, Tensor inv_rms, Tensor dnormed, Tensor dresidual) {
  if (!norm) return context.ops.add_scaled(pass.stream, dresidual, dresidual, dnormed, 1);
  norm_backward(context, pass, gradients, norm, sum, inv_rms, dnormed, dresidual, dresidual);
}

void acquire_output_norm(const DecoderContext& context, Arena& arena, std::int64_t n, Tensor& raw, Tensor& inv_rms) {
  acquire_if_empty(arena, raw, "output before its norm", context.activations(), {n, context.spec.hidden});
  acquire_if_empty(arena, inv_rms, "inverse rms", DType::f32, {n});
}

void block_output_norm(const DecoderContext& context, const DecoderPass& pass, Joined norm, Tensor out, Tensor raw,
                       Tensor inv_rms) {
  if (norm)
    context.ops.add_rms_norm(pass.stream, out, Tensor(), inv_rms, raw, Tensor(), pass.weight(norm),
                             {context.spec.rms_epsilon, context.spec.norm_offset});
}

Tensor block_output_backward(const DecoderContext& context, const DecoderPass& pass, GradientSink& gradients,
                             Joined norm, Tensor raw, Tensor inv_rms, Tensor room, Tensor dresidual) {
  Tensor dout = dresidual;
  if (const float scale = context.residual_scale(); scale != 1) {
    context.ops.add_scaled(pass.stream, room, Tensor(), dout, scale);
    dout = room;
  }
  if (!norm) return dout;
  norm_backward(context, pass, gradients, norm, raw, inv_rms, dout, Tensor(), room);
  return room;
}

}  // namespace so
