// The backward pass of LatentBlock. Formulas are the plain chain rule of latent_block.cpp, read bottom to top.
#include "model/decoder/block_norms.h"
#include "model/decoder/gradients.h"
#include "model/decoder/latent_block.h"
#include "model/decoder/mixer_input.h"

namespace so {

void LatentBlock::backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations a, Tensor dnormed,
                           Tensor dresidual, std::int64_t tile, Tensor room) const {
  const DType t = context_.activations();
  const std::int64_t n = pass.tokens(), width = shape_.q_width();
  Stream& stream = pass.stream;
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);
  const auto part_of = [&](std::int64_t first, std::int64_t count) { return tile < n ? a.rows(first, count) : a; };
  const auto positions_of = [&](std::int64_t first, std::int64_t count) {
    return pass.batch.positions.rows(first, count);
  };

  if (!a.expanded) {
    a.expanded = arena.acquire("heads of latents", t, {n, 3 * width});
    for_each_tile(n, tile, [&](std::int64_t first, std::int64_t count) {
      expand(pass, part_of(first, count), positions_of(first, count));
    });
  }
  const Tensor dattention = in_room(arena, "gradient of attention", t, n, width, room);
  const Tensor dq = arena.acquire("gradient of queries", t, {n, width}),
               dkv = arena.acquire("gradient of keys and values", t, {n, 2 * width});
  for_each_gradient_tile(
      ops_, pass, gradients, {p_.o}, tile, [&](GradientSink& sink, std::int64_t first, std::int64_t count) {
        const Tensor dout = block_output_backward(context_, pass, sink, Joined(), Tensor(), Tensor(),
                                                  dnormed.rows(0, count), dresidual.rows(first, count));
        ops_.linear_grad_input(stream, dattention.rows(first, count), dout, pass.weight(p_.o), Accumulate::overwrite);
        grad_linear(ops_, stream, sink, p_.o, Joined(), dout, a.mixed.rows(first, count));
      });
  const std::int64_t h = shape_.heads, d = shape_.head_dim;
  attention_.attend_backward(pass, gradients, with_heads(a), dattention,
                             {.q = {dq, 0, h, d}, .k = {dkv, 0, h, d}, .v = {dkv, width, h, d}});
  const Tensor dprojected = arena.acquire("gradient of latents", t, {n, latent_.projected_width()});
  for_each_gradient_tile(ops_, pass, gradients, {p_.q_heads, p_.q_latent_norm, p_.kv_heads, p_.kv_latent_norm}, tile,
                         [&](GradientSink& sink, std::int64_t first, std::int64_t count) {
                           expand_backward(pass, sink, part_of(first, count), positions_of(first, count),
                                           dq.rows(first, count), dkv.rows(first, count),
                                           dprojected.rows(first, count));
                         });
  projections_backward(context_, pass, gradients, qkv_, p_, a, dprojected, dnormed, dresidual, tile);
}

void LatentBlock::expand_backward(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a,
                                  Tensor positions, Tensor dq, Tensor dkv, Tensor dprojected) const {
  Arena& arena = pass.arena;
  Stream& stream = pass.stream;
  const DType t = context_.activations();
  const std::int64_t n = a.qkv.dim(0), width = shape_.q_width();
  const Tensor table = attention_.rope(RotatedHeads::keys);
  const auto turn_back = [&](Heads din, Heads dout) {
    ops_.rotary_grad(stream,
                     {.din = din, .dout = dout, .positions = positions, .table = table, .pairs = spec_.rope.pairs});
  };
  Arena::Scope scope(arena);
  const Latents latents = make_latents(pass, a);

  turn_back(rotating_part(dq, 0), rotating_part(dq, 0));
  latent_backward(pass, gradients, p_.q_heads, p_.q_latent_norm, q_norm(pass, a), dq, latents.q, q_latent_in(a.qkv),
                  q_latent_in(dprojected));

  const Heads shared{arena.acquire("gradient of the shared part of keys", t, {n, latent_.rotary_dim}), 0, 1,
                     latent_.rotary_dim};
  ops_.sum_heads(stream, shared, rotating_part(dkv, 0));
  turn_back(shared_key_in(dprojected), shared);
  const Tensor dmade = arena.acquire("gradient of keys and values of latents", t,
                                     {n, shape_.heads * (latent_.still_dim + latent_.v_dim)});
  ops_.copy_heads(stream, made_keys(dmade), still_part(dkv, 0));
  ops_.copy_heads(stream, made_values(dmade), {dkv, width, shape_.heads, latent_.v_dim});
  latent_backward(pass, gradients, p_.kv_heads, p_.kv_latent_norm, kv_norm(pass, a), dmade, latents.kv,
                  kv_latent_in(a.qkv), kv_latent_in(dprojected));
}

void LatentBlock::latent_backward(const DecoderPass& pass, GradientSink& gradients, Joined heads, Joined norm_weight,
                                  const HeadNorm& norm, Tensor dheads, Tensor latent, Heads projected,
                                  Heads dprojected) const {
  Arena::Scope scope(pass.arena);
  Stream& stream = pass.stream;
  const Tensor dlatent =
      pass.arena.acquire("gradient of normed latents", latent.dtype(), {latent.dim(0), latent.dim(1)});
  ops_.linear_grad_input(stream, dlatent, dheads, pass.weight(heads), Accumulate::overwrite);
  grad_linear(ops_, stream, gradients, heads, Joined(), dheads, latent);
  const auto dw = vector_gradient(gradients, pass.arena, norm_weight, norm.weight);
  ops_.projection_norm_grad(stream, {.din = dprojected,
                                     .dout = {dlatent, 0, 1, latent.dim(1)},
                                     .in = projected,
                                     .norm = norm,
                                     .dweight = dw.tensor,
                                     .dweight_mode = dw.mode});
}

}  // namespace so
