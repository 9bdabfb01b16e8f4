#include "model/decoder/attention_block.h"

#include "base/error.h"
#include "model/decoder/block_norms.h"
#include "model/decoder/mixer_input.h"

namespace so {
namespace {

bool takes_last(const DecoderSpec& spec, std::int64_t layer) {
  for (std::int64_t above = layer + 1; above < spec.layers; ++above)
    if (spec.layer(above).keys_of == spec.layer(layer).keys_of) return false;
  return true;
}

}  // namespace

AttentionBlock::AttentionBlock(const DecoderContext& context, std::int64_t layer)
    : context_(context),
      spec_(context.spec),
      ops_(context.ops),
      layer_(layer),
      shape_(context.spec.shape(layer)),
      keys_of_(shape_.takes_keys ? spec_.layer(layer).keys_of : layer),
      gives_keys_(spec_.gives_keys(layer)),
      last_taker_(takes_last(spec_, layer)),
      p_(context.parameters(layer)),
      qkv_(context, layer, p_.qkv, p_.qkv_bias),
      o_(context, layer, p_.o, p_.o_bias),
      setup_(context, layer),
      sliced_(context, layer) {
  const LayerRotation rotation = spec_.layer(layer).rotation;
  SO_CHECK(rotation != LayerRotation::none || !spec_.qk_norm, "a norm of heads goes with their rotation");
  SO_CHECK(!spec_.output_gate || spec_.qk_norm, "queries between gates, to be rotated in place");
  SO_CHECK(!shape_.value_norm || spec_.qk_norm, "a norm of values, in place");
  SO_CHECK(!shape_.keys_are_values || shape_.value_norm, "values that are keys, to be rotated in place");
  SO_CHECK(!(shape_.takes_keys || gives_keys_) || spec_.qk_norm, "keys of several layers, to be rotated in place");
  SO_CHECK(keys_of_ == layer || (keys_of_ < layer && spec_.layer(keys_of_).window == spec_.layer(layer).window),
           "layer {} with the keys of layer {}", layer, keys_of_);
  SO_CHECK(rotation != LayerRotation::local || spec_.local_rope, "a local rotation without its table");
  SO_CHECK(!queries_have_own_table(spec_) || spec_.rope.rotary_dim == shape_.head_dim,
           "queries that grow, and {} of {} dimensions rotate", spec_.rope.rotary_dim, shape_.head_dim);
}

Tensor AttentionBlock::acquire_lse(const DecoderPass& pass) const {
  const std::int64_t heads = pass.batch.is_slice() ? sliced_.own_heads().q : shape_.heads;
  return pass.arena.acquire("log-sum-exp", DType::f32, {heads, pass.batch.all_tokens()});
}

void AttentionBlock::keep_output(const DecoderPass& pass, LayerActivations& a) const {
  a.mixed = pass.arena.acquire("attention", context_.activations(), {pass.tokens(), shape_.q_width()});
  a.lse = acquire_lse(pass);
}

void AttentionBlock::keep_projections(const DecoderPass& pass, LayerActivations& a) const {
  const std::int64_t n = pass.tokens();
  if (spec_.input_norms) a.inv_rms1 = pass.arena.acquire("inverse rms", DType::f32, {n});
  a.qkv = pass.arena.acquire("qkv", context_.activations(), {n, shape_.qkv_width()});
  complete_head_norms(pass.arena, n, a);
  if (!a.q_inv_rms) a.qk = a.qkv;  // rotated in place
}

void AttentionBlock::keep_all(const DecoderPass& pass, LayerActivations& a) const {
  complete(pass, a, false, Tensor());
  if (spec_.output_gate)
    a.gated = pass.arena.acquire("gated attention", context_.activations(), {pass.tokens(), shape_.q_width()});
}

void AttentionBlock::complete(const DecoderPass& pass, LayerActivations& a, bool in_tiles, Tensor room) const {
  Arena& arena = pass.arena;
  const std::int64_t n = pass.tokens();
  const DType t = context_.activations();
  const DecoderSpec& s = spec_;
  if (s.input_norms) acquire_if_empty(arena, a.inv_rms1, "inverse rms", DType::f32, {n});
  if (!in_tiles) complete_mixer_input(context_, arena, qkv_, n, a);
  acquire_if_empty(arena, a.qkv, "qkv", t, {n, shape_.qkv_width()});
  if (s.qk_norm || s.projection_norm)
    acquire_if_empty(arena, a.qk, "rotated qk", t, {n, shape_.rotated_width()});
  else
    a.qk = a.qkv;
  complete_head_norms(arena, n, a);
  if (s.output_norms) acquire_output_norm(context_, arena, n, a.attention_out, a.attention_out_inv_rms);
  if (!a.mixed) {
    a.mixed = in_room(arena, "attention", t, n, shape_.q_width(), room);
    // Attention runs here, or again, in which case its gradient finds these.
    complete_slice(pass, a);
  }
  if (!a.lse) a.lse = acquire_lse(pass);
}

void AttentionBlock::complete_slice(const DecoderPass& pass, LayerActivations& a) const {
  if (pass.batch.is_slice()) sliced_.complete(pass, a);
}

void AttentionBlock::complete_head_norms(Arena& arena, std::int64_t n, LayerActivations& a) const {
  const auto complete = [&](Tensor& tensor, const char* name, std::int64_t heads) {
    if (spec_.qk_norm) acquire_if_empty(arena, tensor, name, DType::f32, {n, heads});
    if (spec_.projection_norm) acquire_if_empty(arena, tensor, name, DType::f32, {n});
  };
  complete(a.q_inv_rms, "inverse rms of q", shape_.heads);
  if (!shape_.takes_keys) complete(a.k_inv_rms, "inverse rms of k", shape_.kv_heads);
  if (shape_.value_norm) acquire_if_empty(arena, a.v_inv_rms, "inverse rms of v", DType::f32, {n, shape_.kv_heads});
}

Tensor AttentionBlock::rope(RotatedHeads heads) const {
  const LayerRotation rotation = spec_.layer(layer_).rotation;
  if (rotation == LayerRotation::none) return {};
  return rope_table_of(spec_, context_.rope, rotation, heads);
}

const RopeSpec& AttentionBlock::rotation() const {
  return spec_.layer(layer_).rotation == LayerRotation::local ? *spec_.local_rope : spec_.rope;
}

void AttentionBlock::rotate(const DecoderPass& pass, const LayerActivations& a) const {
  const auto turn = [&](Heads out, Heads in, Tensor table, Joined weight, Tensor inv_rms) {
    HeadNorm norm{pass.weight(weight), spec_.rms_epsilon, inv_rms, spec_.norm_offset};
    if (spec_.projection_norm) {
      ops_.projection_norm(pass.stream, out, in, norm);
      in = out;
      norm = {};
    }
    if (table) ops_.rotary(pass.stream, out, in, pass.batch.positions, table, norm, rotation().pairs);
  };
  turn(a.q(shape_), a.raw_q(shape_), rope(RotatedHeads::queries), p_.q_norm, a.q_inv_rms);
  if (shape_.takes_keys) return;
  turn(a.k(shape_), a.raw_k(shape_), rope(RotatedHeads::keys), p_.k_norm, a.k_inv_rms);
  if (shape_.value_norm) ops_.head_norm(pass.stream, a.v(shape_), a.raw_v(shape_), a.v_inv_rms, spec_.rms_epsilon);
}

void AttentionBlock::forward(const DecoderPass& pass, const LayerActivations& a, const ResidualStream& residual,
                             Tensor out, KvCache* cache, std::int64_t tile, bool mixed) const {
  const std::int64_t n = pass.tokens();
  Stream& stream = pass.stream;
  const auto rows = [](Tensor t, std::int64_t first, std::int64_t count) { return t ? t.rows(first, count) : t; };
  make_projections(context_, pass, qkv_, p_, a, residual, tile,
                   [&](const LayerActivations& part) { qkv_.forward(pass, part.qkv, part.normed1); });
  rotate(pass, a);
  if (!mixed) attend(pass, a, cache);
  for_each_tile(n, tile, [&](std::int64_t first, std::int64_t count) {
    Arena::Scope scope(pass.arena);
    const Tensor to = rows(out, first, count), raw = rows(a.attention_out, first, count);
    Tensor attention = rows(a.mixed, first, count);
    if (spec_.output_gate) {
      Tensor gated = rows(a.gated, first, count);
      acquire_if_empty(pass.arena, gated, "gated attention", context_.activations(), {count, shape_.q_width()});
      const std::int64_t h = shape_.heads, d = shape_.head_dim;
      ops_.sigmoid_gate(stream, {gated, 0, h, d}, {attention, 0, h, d}, gates_in(rows(a.qkv, first, count), shape_));
      attention = gated;
    }
    if (!to) return;
    o_.forward(pass, raw ? raw : to, attention);
    block_output_norm(context_, pass, p_.attention_output_norm, to, raw, rows(a.attention_out_inv_rms, first, count));
  });
}

AttentionHeads AttentionBlock::attended(const DecoderPass& pass, const LayerActivations& a) const {
  if (!shape_.takes_keys) return {a.q(shape_), a.k(shape_), a.v(shape_)};
  const Tensor rows = pass.across.keys[static_cast<std::size_t>(keys_of_)].rows;
  return {a.q(shape_), taken_keys(rows, shape_), taken_values(rows, shape_)};
}

AttentionHeads AttentionBlock::cached(const DecoderPass& pass, const LayerActivations& a, KvCache& cache) const {
  const AttentionShape& s = shape_;
  const std::int64_t n = pass.tokens();
  const Tensor rows = cache.layers[static_cast<std::size_t>(keys_of_)].keys_values;
  if (!s.takes_keys) {
    const Tensor added = rows.rows(cache.used, n);
    ops_.copy_heads(pass.stream, taken_keys(added, s), a.k(s));
    ops_.copy_heads(pass.stream, taken_values(added, s), a.v(s));
  }
  const Tensor all = rows.rows(0, cache.used + n);
  return {a.q(s), taken_keys(all, s), taken_values(all, s)};
}

void AttentionBlock::attend(const DecoderPass& pass, const LayerActivations& a, KvCache* cache) const {
  if (pass.batch.is_slice()) return sliced_.forward(pass, a);
  const AttentionShape& s = shape_;
  const std::int64_t n = pass.tokens();
  const AttentionHeads heads = cache ? cached(pass, a, *cache) : attended(pass, a);
  if (gives_keys_ && !cache) {
    const Tensor rows = pass.across.keys[static_cast<std::size_t>(layer_)].rows;
    ops_.copy_heads(pass.stream, taken_keys(rows, s), heads.k);
    ops_.copy_heads(pass.stream, taken_values(rows, s), heads.v);
  }
  Arena::Scope scope(pass.arena);
  const AttentionSpans spans = setup_.spans(pass);
  const Tensor scratch = setup_.acquire_scratch(pass.arena, setup_.size(spans, n, heads.k.rows.dim(0)));
  ops_.attention(pass.stream, {.out = a.attention_heads(s),
                               .lse = a.lse,
                               .q = heads.q,
                               .k = heads.k,
                               .v = heads.v,
                               .spans = spans,
                               .scratch = scratch});
}

}  // namespace so
