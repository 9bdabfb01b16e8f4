// The backward pass of DeltaBlock. Formulas are the plain chain rule of delta_block.cpp, read bottom to top.
#include "model/decoder/block_norms.h"
#include "model/decoder/delta_block.h"
#include "model/decoder/gradients.h"
#include "model/decoder/key_head_order.h"
#include "model/decoder/mixer_input.h"

namespace so {

void DeltaBlock::backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations a, Tensor dnormed,
                          Tensor dresidual, std::int64_t tile, Tensor room) const {
  const DType t = context_.activations();
  const std::int64_t n = pass.tokens();
  Stream& stream = pass.stream;
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);

  if (!a.convolved && !pass.batch.is_slice()) {
    complete_rule_inputs(pass, a);
    make_rule_inputs(context_, pass, part_of(pass, a), nullptr);
  }
  const Tensor dmixed = in_room(arena, "gradient of the delta rule", t, n, delta_.v_width(), room);
  const Tensor dprojected = arena.acquire("gradient of delta projections", t, {n, delta_.projected_width()});
  for_each_gradient_tile(ops_, pass, gradients, {p_.o, p_.state_norm}, tile,
                         [&](GradientSink& sink, std::int64_t first, std::int64_t count) {
                           const LayerActivations part = tile < n ? a.rows(first, count) : a;
                           const Tensor d = dmixed.rows(first, count);
                           const Tensor dout =
                               block_output_backward(context_, pass, sink, Joined(), Tensor(), Tensor(),
                                                     dnormed.rows(0, count), dresidual.rows(first, count));
                           ops_.linear_grad_input(stream, d, dout, pass.weight(p_.o), Accumulate::overwrite);
                           const Tensor gated = gate_backward(pass, sink, part, d, dprojected.rows(first, count));
                           grad_linear(ops_, stream, sink, p_.o, Joined(), dout, gated);
                         });
  mix_backward(pass, gradients, a, dmixed, dprojected);
  // In the checkpoint's order the gradient takes the place of the projections, which nothing reads any more.
  const auto sorted = [&](const LayerActivations& part, Tensor dtile) {
    if (!delta_.by_key_head) return dtile;
    to_key_head_order(ops_, stream, delta_, part.qkv, dtile);
    return part.qkv;
  };
  projections_backward(context_, pass, gradients, qkv_, p_, a, dprojected, dnormed, dresidual, tile, sorted);
}

Tensor DeltaBlock::gate_backward(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a,
                                 Tensor dmixed, Tensor dprojected) const {
  Tensor gated = a.gated, again;
  if (!gated)
    gated = again = pass.arena.acquire("gated delta", context_.activations(), {dmixed.dim(0), delta_.v_width()});
  const HeadNorm norm = output_norm(pass, a);
  const auto dw = vector_gradient(gradients, pass.arena, p_.state_norm, norm.weight);
  ops_.gated_norm_grad(pass.stream, {.dx = output_in(dmixed),
                                     .dgate = gate_in(dprojected),
                                     .normed = output_in(again),
                                     .dweight = dw.tensor,
                                     .dweight_mode = dw.mode,
                                     .dout = output_in(dmixed),
                                     .x = output_in(a.mixed),
                                     .gate = gate_in(a.qkv),
                                     .norm = norm});
  return gated;
}

void DeltaBlock::mix_backward(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a,
                              Tensor dmixed, Tensor dprojected) const {
  Arena::Scope scope(pass.arena);
  const auto target = [&](Joined p) { return vector_gradient(gradients, pass.arena, p, pass.weight(p)); };
  const DeltaTargets targets{target(p_.convolution), target(p_.a_log), target(p_.dt_bias)};
  if (pass.batch.is_slice()) return sliced_.backward(pass, a, dmixed, dprojected, targets);
  rule_backward(context_, pass, part_of(pass, a), dmixed, dprojected, targets);
}

}  // namespace so
