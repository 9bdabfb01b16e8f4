#include "model/decoder/state_space_block.h"

#include "base/error.h"
#include "model/decoder/block_norms.h"
#include "model/decoder/gradients.h"
#include "model/decoder/mixer_input.h"

namespace so {

StateSpaceBlock::StateSpaceBlock(const DecoderContext& context, std::int64_t layer)
    : context_(context),
      spec_(context.spec),
      space_(context.spec.state_space),
      ops_(context.ops),
      layer_(layer),
      p_(context.parameters(layer)),
      qkv_(context, p_.qkv, Joined()),
      sliced_(context, layer) {
  SO_CHECK(!spec_.output_norms, "a norm of what a state space adds");
}

void StateSpaceBlock::keep_output(const DecoderPass& pass, LayerActivations& a) const {
  a.mixed = pass.arena.acquire("state space", context_.activations(), {pass.tokens(), space_.width()});
}

void StateSpaceBlock::keep_projections(const DecoderPass& pass, LayerActivations& a) const {
  const std::int64_t n = pass.tokens();
  if (spec_.input_norms) a.inv_rms1 = pass.arena.acquire("inverse rms", DType::f32, {n});
  a.qkv = pass.arena.acquire("state space projections", context_.activations(), {n, space_.projected_width()});
  a.gated_inv_rms = pass.arena.acquire("inverse rms of groups", DType::f32, {n, space_.groups});
}

void StateSpaceBlock::keep_all(const DecoderPass& pass, LayerActivations& a) const {
  complete(pass, a, false, Tensor());
  a.gated = pass.arena.acquire("gated state space", context_.activations(), {pass.tokens(), space_.width()});
}

void StateSpaceBlock::complete(const DecoderPass& pass, LayerActivations& a, bool in_tiles, Tensor room) const {
  Arena& arena = pass.arena;
  const std::int64_t n = pass.tokens();
  const DType t = context_.activations();
  if (spec_.input_norms) acquire_if_empty(arena, a.inv_rms1, "inverse rms", DType::f32, {n});
  if (!in_tiles) complete_mixer_input(context_, arena, qkv_, n, a);
  acquire_if_empty(arena, a.qkv, "state space projections", t, {n, space_.projected_width()});
  if (!pass.batch.is_slice()) complete_inputs(pass, a);
  if (!a.mixed) {
    a.mixed = in_room(arena, "state space", t, n, space_.width(), room);
    // The state space is run here, or again, in which case its gradient finds these.
    if (pass.batch.is_slice()) sliced_.complete(pass, a);
  }
  acquire_if_empty(arena, a.gated_inv_rms, "inverse rms of groups", DType::f32, {n, space_.groups});
}

StateSpacePart StateSpaceBlock::part_of(const DecoderPass& pass, const LayerActivations& a) const {
  return {.groups = space_.groups,
          .heads = space_.heads,
          .projected = a.qkv,
          .first_column = space_.width(),
          .step_column = space_.width() + space_.convolved_width(),
          .convolution = pass.weight(p_.convolution),
          .convolution_bias = pass.weight(p_.convolution_bias),
          .a_log = pass.weight(p_.a_log),
          .dt_bias = pass.weight(p_.dt_bias),
          .skip = pass.weight(p_.skip),
          .convolved = a.convolved,
          .decay = a.decay,
          .step = a.rate,
          .mixed = a.mixed};
}

void StateSpaceBlock::complete_inputs(const DecoderPass& pass, LayerActivations& a) const {
  acquire_state_space_inputs(context_, pass.arena, pass.tokens(), space_.groups, space_.heads, a);
}

HeadNorm StateSpaceBlock::output_norm(const DecoderPass& pass, const LayerActivations& a) const {
  return {pass.weight(p_.state_norm), spec_.rms_epsilon, a.gated_inv_rms};
}

void StateSpaceBlock::forward(const DecoderPass& pass, const LayerActivations& a, const ResidualStream& residual,
                              Tensor out, KvCache* cache, std::int64_t tile, bool mixed) const {
  const std::int64_t n = pass.tokens();
  Stream& stream = pass.stream;
  make_projections(context_, pass, qkv_, p_, a, residual, tile,
                   [&](const LayerActivations& part) { qkv_.forward(pass, part.qkv, part.normed1); });
  mix(pass, a, cache, mixed);
  for_each_tile(n, tile, [&](std::int64_t first, std::int64_t count) {
    Arena::Scope scope(pass.arena);
    LayerActivations part = tile < n ? a.rows(first, count) : a;
    acquire_if_empty(pass.arena, part.gated, "gated state space", context_.activations(), {count, space_.width()});
    ops_.gate_then_norm(stream, groups_in(part.gated), groups_in(part.mixed), groups_in(part.qkv),
                        output_norm(pass, part));
    if (!out) return;
    ops_.linear(stream, out.rows(first, count), part.gated, pass.weight(p_.o), Tensor(), Accumulate::overwrite);
  });
}

void StateSpaceBlock::mix(const DecoderPass& pass, const LayerActivations& a, KvCache* cache, bool mixed) const {
  if (pass.batch.is_slice()) {
    if (!mixed) sliced_.forward(pass, a);
    return;
  }
  const LayerCache* before = cache != nullptr ? &cache->layers[static_cast<std::size_t>(layer_)] : nullptr;
  if (before != nullptr && cache->used == 0)
    for (const Tensor& seen : {before->convolution, before->state}) pass.stream.zero(seen.data(), seen.bytes());
  const StateSpacePart part = part_of(pass, a);
  make_state_space_inputs(context_, pass, part, before);
  if (!mixed) apply_state_space(context_, pass, part, before);
}

void StateSpaceBlock::backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations a, Tensor dnormed,
                               Tensor dresidual, std::int64_t tile, Tensor room) const {
  const DType t = context_.activations();
  const std::int64_t n = pass.tokens();
  Stream& stream = pass.stream;
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);

  if (!a.convolved && !pass.batch.is_slice()) {
    complete_inputs(pass, a);
    make_state_space_inputs(context_, pass, part_of(pass, a), nullptr);
  }
  const Tensor dmixed = in_room(arena, "gradient of the state space", t, n, space_.width(), room);
  const Tensor dprojected = arena.acquire("gradient of state space projections", t, {n, space_.projected_width()});
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
  projections_backward(context_, pass, gradients, qkv_, p_, a, dprojected, dnormed, dresidual, tile);
}

Tensor StateSpaceBlock::gate_backward(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a,
                                      Tensor dmixed, Tensor dprojected) const {
  Tensor gated = a.gated, again;
  if (!gated)
    gated = again = pass.arena.acquire("gated state space", context_.activations(), {dmixed.dim(0), space_.width()});
  const HeadNorm norm = output_norm(pass, a);
  const auto dw = vector_gradient(gradients, pass.arena, p_.state_norm, norm.weight);
  ops_.gate_then_norm_grad(pass.stream, {.dx = groups_in(dmixed),
                                         .dgate = groups_in(dprojected),
                                         .normed = groups_in(again),
                                         .dweight = dw.tensor,
                                         .dweight_mode = dw.mode,
                                         .dout = groups_in(dmixed),
                                         .x = groups_in(a.mixed),
                                         .gate = groups_in(a.qkv),
                                         .norm = norm});
  return gated;
}

void StateSpaceBlock::mix_backward(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a,
                                   Tensor dmixed, Tensor dprojected) const {
  Arena::Scope scope(pass.arena);
  const auto target = [&](Joined p) {
    return p ? vector_gradient(gradients, pass.arena, p, pass.weight(p)) : GradientSink::Target();
  };
  const StateSpaceTargets targets{target(p_.convolution), target(p_.convolution_bias), target(p_.a_log),
                                  target(p_.dt_bias), target(p_.skip)};
  if (pass.batch.is_slice()) return sliced_.backward(pass, a, dmixed, dprojected, targets);
  state_space_backward(context_, pass, part_of(pass, a), dmixed, dprojected, targets);
}

}  // namespace so
