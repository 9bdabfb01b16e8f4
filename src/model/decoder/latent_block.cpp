#include "model/decoder/latent_block.h"

#include "base/error.h"
#include "model/decoder/mixer_input.h"

namespace so {

LatentBlock::LatentBlock(const DecoderContext& context, std::int64_t layer)
    : context_(context),
      spec_(context.spec),
      latent_(context.spec.latent),
      shape_(context.spec.shape(layer)),
      ops_(context.ops),
      p_(context.parameters(layer)),
      qkv_(context, p_.qkv, Joined()),
      attention_(context, layer) {
  SO_CHECK(!spec_.output_norms && !spec_.o_bias && !spec_.qkv_bias, "norms or biases around attention by latents");
  SO_CHECK(latent_.still_dim + latent_.rotary_dim == shape_.head_dim && latent_.v_dim == shape_.head_dim &&
               shape_.kv_heads == shape_.heads && spec_.rope.rotary_dim == latent_.rotary_dim,
           "heads of {} and {}, {} wide, values of {}", latent_.still_dim, latent_.rotary_dim, shape_.head_dim,
           latent_.v_dim);
}

void LatentBlock::keep_output(const DecoderPass& pass, LayerActivations& a) const {
  a.mixed = pass.arena.acquire("attention", context_.activations(), {pass.tokens(), shape_.q_width()});
  a.lse = attention_.acquire_lse(pass);
}

// The latents are few columns, of which the heads are made again.
void LatentBlock::keep_projections(const DecoderPass& pass, LayerActivations& a) const {
  const std::int64_t n = pass.tokens();
  if (spec_.input_norms) a.inv_rms1 = pass.arena.acquire("inverse rms", DType::f32, {n});
  a.qkv = pass.arena.acquire("latents", context_.activations(), {n, latent_.projected_width()});
  a.q_inv_rms = pass.arena.acquire("inverse rms of q", DType::f32, {n});
  a.k_inv_rms = pass.arena.acquire("inverse rms of k", DType::f32, {n});
}

void LatentBlock::keep_all(const DecoderPass& pass, LayerActivations& a) const { complete(pass, a, false, Tensor()); }

void LatentBlock::complete(const DecoderPass& pass, LayerActivations& a, bool in_tiles, Tensor room) const {
  Arena& arena = pass.arena;
  const std::int64_t n = pass.tokens();
  const DType t = context_.activations();
  if (spec_.input_norms) acquire_if_empty(arena, a.inv_rms1, "inverse rms", DType::f32, {n});
  if (!in_tiles) complete_mixer_input(context_, arena, qkv_, n, a);
  acquire_if_empty(arena, a.qkv, "latents", t, {n, latent_.projected_width()});
  acquire_if_empty(arena, a.q_inv_rms, "inverse rms of q", DType::f32, {n});
  acquire_if_empty(arena, a.k_inv_rms, "inverse rms of k", DType::f32, {n});
  acquire_if_empty(arena, a.expanded, "heads of latents", t, {n, 3 * shape_.q_width()});
  if (!a.mixed) {
    a.mixed = in_room(arena, "attention", t, n, shape_.q_width(), room);
    attention_.complete_slice(pass, a);
  }
  if (!a.lse) a.lse = attention_.acquire_lse(pass);
}

Heads LatentBlock::still_part(Tensor rows, std::int64_t column) const {
  return {rows, column, shape_.heads, latent_.still_dim, shape_.head_dim};
}
Heads LatentBlock::rotating_part(Tensor rows, std::int64_t column) const {
  return {rows, column + latent_.still_dim, shape_.heads, latent_.rotary_dim, shape_.head_dim};
}
Heads LatentBlock::made_keys(Tensor rows) const {
  return {rows, 0, shape_.heads, latent_.still_dim, latent_.still_dim + latent_.v_dim};
}
Heads LatentBlock::made_values(Tensor rows) const {
  return {rows, latent_.still_dim, shape_.heads, latent_.v_dim, latent_.still_dim + latent_.v_dim};
}

HeadNorm LatentBlock::q_norm(const DecoderPass& pass, const LayerActivations& a) const {
  return {pass.weight(p_.q_latent_norm), latent_.norm_epsilon, a.q_inv_rms, spec_.norm_offset};
}
HeadNorm LatentBlock::kv_norm(const DecoderPass& pass, const LayerActivations& a) const {
  return {pass.weight(p_.kv_latent_norm), latent_.norm_epsilon, a.k_inv_rms, spec_.norm_offset};
}

LatentBlock::Latents LatentBlock::make_latents(const DecoderPass& pass, const LayerActivations& a) const {
  const DType t = context_.activations();
  const std::int64_t n = a.qkv.dim(0);
  const Latents latents{pass.arena.acquire("normed latents", t, {n, latent_.q_rank}),
                        pass.arena.acquire("normed latents", t, {n, latent_.kv_rank})};
  ops_.projection_norm(pass.stream, {latents.q, 0, 1, latent_.q_rank}, q_latent_in(a.qkv), q_norm(pass, a));
  ops_.projection_norm(pass.stream, {latents.kv, 0, 1, latent_.kv_rank}, kv_latent_in(a.qkv), kv_norm(pass, a));
  return latents;
}

void LatentBlock::expand(const DecoderPass& pass, const LayerActivations& a, Tensor positions) const {
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);
  Stream& stream = pass.stream;
  const DType t = context_.activations();
  const std::int64_t n = a.qkv.dim(0), width = shape_.q_width(), values = shape_.heads * latent_.v_dim;
  const Tensor table = attention_.rope(RotatedHeads::keys);
  const Latents latents = make_latents(pass, a);
  {
    Arena::Scope queries(arena);
    const Tensor made = arena.acquire("queries of latents", t, {n, width});
    ops_.linear(stream, made, latents.q, pass.weight(p_.q_heads), Tensor(), Accumulate::overwrite);
    ops_.copy_heads(stream, still_part(a.expanded, 0), still_part(made, 0));
    ops_.rotary(stream, rotating_part(a.expanded, 0), rotating_part(made, 0), positions, table, {}, spec_.rope.pairs);
  }
  const Tensor made = arena.acquire("keys and values of latents", t, {n, shape_.heads * latent_.still_dim + values});
  ops_.linear(stream, made, latents.kv, pass.weight(p_.kv_heads), Tensor(), Accumulate::overwrite);
  ops_.copy_heads(stream, still_part(a.expanded, width), made_keys(made));
  ops_.copy_heads(stream, {a.expanded, 2 * width, shape_.heads, latent_.v_dim}, made_values(made));
  const Heads shared{arena.acquire("shared part of keys", t, {n, latent_.rotary_dim}), 0, 1, latent_.rotary_dim};
  ops_.rotary(stream, shared, shared_key_in(a.qkv), positions, table, {}, spec_.rope.pairs);
  ops_.spread_head(stream, rotating_part(a.expanded, width), shared);
}

LayerActivations LatentBlock::with_heads(const LayerActivations& a) {
  LayerActivations heads = a;
  heads.qkv = heads.qk = a.expanded;
  return heads;
}

void LatentBlock::forward(const DecoderPass& pass, const LayerActivations& a, const ResidualStream& residual,
                          Tensor out, KvCache* cache, std::int64_t tile, bool mixed) const {
  const std::int64_t n = pass.tokens();
  make_projections(context_, pass, qkv_, p_, a, residual, tile,
                   [&](const LayerActivations& part) { qkv_.forward(pass, part.qkv, part.normed1); });
  for_each_tile(n, tile, [&](std::int64_t first, std::int64_t count) {
    expand(pass, tile < n ? a.rows(first, count) : a, pass.batch.positions.rows(first, count));
  });
  if (!mixed) attention_.attend(pass, with_heads(a), cache);
  if (!out) return;
  for_each_tile(n, tile, [&](std::int64_t first, std::int64_t count) {
    ops_.linear(pass.stream, out.rows(first, count), a.mixed.rows(first, count), pass.weight(p_.o), Tensor(),
                Accumulate::overwrite);
  });
}

}  // namespace so
