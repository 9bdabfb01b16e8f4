#include "model/decoder/delta_block.h"

#include "base/error.h"
#include "model/decoder/block_norms.h"
#include "model/decoder/key_head_order.h"
#include "model/decoder/mixer_input.h"

namespace so {

DeltaBlock::DeltaBlock(const DecoderContext& context, std::int64_t layer)
    : context_(context),
      spec_(context.spec),
      delta_(context.spec.delta),
      ops_(context.ops),
      layer_(layer),
      p_(context.parameters(layer)),
      qkv_(context, p_.qkv, Joined()),
      sliced_(context, layer) {
  SO_CHECK(!spec_.output_norms, "a norm of what a delta layer adds");
}

void DeltaBlock::keep_output(const DecoderPass& pass, LayerActivations& a) const {
  a.mixed = pass.arena.acquire("delta rule", context_.activations(), {pass.tokens(), delta_.v_width()});
}

void DeltaBlock::keep_projections(const DecoderPass& pass, LayerActivations& a) const {
  const std::int64_t n = pass.tokens();
  if (spec_.input_norms) a.inv_rms1 = pass.arena.acquire("inverse rms", DType::f32, {n});
  a.qkv = pass.arena.acquire("delta projections", context_.activations(), {n, delta_.projected_width()});
  a.gated_inv_rms = pass.arena.acquire("inverse rms of heads", DType::f32, {n, delta_.v_heads});
}

void DeltaBlock::keep_all(const DecoderPass& pass, LayerActivations& a) const {
  complete(pass, a, false, Tensor());
  a.gated = pass.arena.acquire("gated delta", context_.activations(), {pass.tokens(), delta_.v_width()});
}

void DeltaBlock::complete(const DecoderPass& pass, LayerActivations& a, bool in_tiles, Tensor room) const {
  Arena& arena = pass.arena;
  const std::int64_t n = pass.tokens();
  const DType t = context_.activations();
  if (spec_.input_norms) acquire_if_empty(arena, a.inv_rms1, "inverse rms", DType::f32, {n});
  if (!in_tiles) complete_mixer_input(context_, arena, qkv_, n, a);
  acquire_if_empty(arena, a.qkv, "delta projections", t, {n, delta_.projected_width()});
  if (!pass.batch.is_slice()) complete_rule_inputs(pass, a);
  if (!a.mixed) {
    a.mixed = in_room(arena, "delta rule", t, n, delta_.v_width(), room);
    // The rule is applied here, or again, in which case its gradient finds these.
    if (pass.batch.is_slice()) sliced_.complete(pass, a);
  }
  acquire_if_empty(arena, a.gated_inv_rms, "inverse rms of heads", DType::f32, {n, delta_.v_heads});
}

DeltaPart DeltaBlock::part_of(const DecoderPass& pass, const LayerActivations& a) const {
  return {.k_heads = delta_.k_heads,
          .v_heads = delta_.v_heads,
          .projected = a.qkv,
          .b_column = delta_.convolved_width() + delta_.v_width(),
          .convolution = pass.weight(p_.convolution),
          .a_log = pass.weight(p_.a_log),
          .dt_bias = pass.weight(p_.dt_bias),
          .convolved = a.convolved,
          .decay = a.decay,
          .rate = a.rate,
          .mixed = a.mixed};
}

void DeltaBlock::complete_rule_inputs(const DecoderPass& pass, LayerActivations& a) const {
  acquire_rule_inputs(context_, pass.arena, pass.tokens(), delta_.k_heads, delta_.v_heads, a);
}

Heads DeltaBlock::gate_in(Tensor projected) const {
  return {projected, delta_.convolved_width(), delta_.v_heads, delta_.v_dim};
}

HeadNorm DeltaBlock::output_norm(const DecoderPass& pass, const LayerActivations& a) const {
  return {pass.weight(p_.state_norm), spec_.rms_epsilon, a.gated_inv_rms};
}

void DeltaBlock::forward(const DecoderPass& pass, const LayerActivations& a, const ResidualStream& residual, Tensor out,
                         KvCache* cache, std::int64_t tile, bool mixed) const {
  const std::int64_t n = pass.tokens();
  Stream& stream = pass.stream;
  make_projections(context_, pass, qkv_, p_, a, residual, tile,
                   [&](const LayerActivations& part) { project(pass, part); });
  mix(pass, a, cache, mixed);
  for_each_tile(n, tile, [&](std::int64_t first, std::int64_t count) {
    Arena::Scope scope(pass.arena);
    LayerActivations part = tile < n ? a.rows(first, count) : a;
    acquire_if_empty(pass.arena, part.gated, "gated delta", context_.activations(), {count, delta_.v_width()});
    ops_.gated_norm(stream, output_in(part.gated), output_in(part.mixed), gate_in(part.qkv), output_norm(pass, part));
    if (!out) return;
    ops_.linear(stream, out.rows(first, count), part.gated, pass.weight(p_.o), Tensor(), Accumulate::overwrite);
  });
}

void DeltaBlock::project(const DecoderPass& pass, const LayerActivations& a) const {
  const bool sorted = delta_.by_key_head;
  const Tensor made =
      sorted ? pass.arena.acquire("projections by key head", a.qkv.dtype(), {a.qkv.dim(0), a.qkv.dim(1)}) : a.qkv;
  qkv_.forward(pass, made, a.normed1);
  if (sorted) from_key_head_order(ops_, pass.stream, delta_, a.qkv, made);
}

void DeltaBlock::mix(const DecoderPass& pass, const LayerActivations& a, KvCache* cache, bool mixed) const {
  if (pass.batch.is_slice()) {
    if (!mixed) sliced_.forward(pass, a);
    return;
  }
  const LayerCache* before = cache != nullptr ? &cache->layers[static_cast<std::size_t>(layer_)] : nullptr;
  if (before != nullptr && cache->used == 0)
    for (const Tensor& seen : {before->convolution, before->state}) pass.stream.zero(seen.data(), seen.bytes());
  const DeltaPart part = part_of(pass, a);
  make_rule_inputs(context_, pass, part, before);
  if (!mixed) apply_rule(context_, pass, part, before);
}

}  // namespace so
