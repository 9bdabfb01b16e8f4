#include "model/decoder/decoder_layer.h"

#include <algorithm>

#include "model/decoder/block_norms.h"

namespace so {

DecoderLayer::DecoderLayer(const DecoderContext& context, std::int64_t layer)
    : context_(context),
      unit_(layer_unit(layer)),
      scale_(context.parameters(layer).scale),
      keep_(context.keep_of(layer)),
      mixer_(make_token_mixer(context, layer)),
      mlp_(context, layer) {}

LayerActivations DecoderLayer::acquire_kept(const DecoderPass& pass, Keep keep) const {
  Arena& arena = pass.arena;
  const std::int64_t n = pass.tokens();
  const DType t = context_.activations();
  const DecoderSpec& s = context_.spec;
  LayerActivations a;
  if (keep == Keep::host || keep == Keep::nothing) return a;  // the input comes from elsewhere
  a.x = arena.acquire("layer input", t, {n, s.hidden});
  if (keep == Keep::input) return a;
  mixer_->keep_output(pass, a);
  if (keep == Keep::attention) return a;
  mixer_->keep_projections(pass, a);
  // The input of a norm after attention or MLP stays, or the product before it would be run again.
  if (s.output_norms) {
    acquire_output_norm(context_, arena, n, a.attention_out, a.attention_out_inv_rms);
    acquire_output_norm(context_, arena, n, a.mlp_out, a.mlp_out_inv_rms);
  }
  a.middle = arena.acquire("after attention", t, {n, s.hidden});
  if (s.input_norms) a.inv_rms2 = arena.acquire("inverse rms", DType::f32, {n});
  const FeedForward& feed_forward = mlp_.feed_forward();
  feed_forward.complete_outputs(arena, n, a);
  feed_forward.complete_routing(arena, n, a);
  if (keep == Keep::no_gate_up) return a;
  feed_forward.complete_gate_up(arena, n, a);
  if (keep == Keep::light) return a;
  mixer_->keep_all(pass, a);
  if (feed_forward.keeps_activated())
    mlp_.complete(arena, n, a);
  else
    a.normed2 = arena.acquire("normed middle", t, {n, s.hidden});
  return a;
}

std::int64_t DecoderLayer::mixer_tile(const LayerActivations& kept, std::int64_t n) const {
  const std::int64_t tile = context_.settings.tile_rows;
  return tile > 0 && !kept.normed1 ? std::min(n, tile) : n;
}

std::int64_t DecoderLayer::mlp_tile(const LayerActivations& kept, std::int64_t n) const {
  const std::int64_t tile = context_.settings.tile_rows;
  return tile > 0 && mlp_.feed_forward().works_in_tiles(kept) ? std::min(n, tile) : n;
}

void DecoderLayer::forward(const DecoderPass& pass, const LayerActivations& kept, ResidualStream& residual,
                           KvCache* cache) const {
  const std::int64_t n = pass.tokens(), before = mixer_tile(kept, n), behind = mlp_tile(kept, n);
  LayerActivations a = kept;
  a.layer_inputs = pass.across.layer_inputs;
  if (!a.middle) a.middle = residual.middle;
  pass.weights.require_weights(unit_, pass.stream);
  {
    Arena::Scope block(pass.arena);
    LayerActivations own = a;
    mixer_->complete(pass, own, before < n);
    // `delta` may still be the previous layer's, which the first norm has read by the time it is overwritten.
    mixer_->forward(pass, own, residual, residual.scratch, cache, before);
    pass.show(unit_, "its input", a.x);
    pass.show(unit_, mixer_->name_of_output(), residual.scratch);
  }
  mlp_.forward(pass, a, residual.scratch, behind);
  pass.show(unit_, "its sum after attention", a.middle);
  pass.show(unit_, mlp_.makes_stream() ? "its output" : mlp_.feed_forward().name_of_output(), residual.scratch);
  pass.weights.release_weights(unit_, pass.stream);
  residual.x = mlp_.makes_stream() ? Tensor() : a.middle;
  residual.delta = residual.scratch;
  residual.scale = scale_;
}

void DecoderLayer::backward(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& kept,
                            const ResidualStream& residual, Tensor dresidual) const {
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);
  const DType t = context_.activations();
  const std::int64_t n = pass.tokens(), before = mixer_tile(kept, n), behind = mlp_tile(kept, n);
  pass.weights.require_weights(unit_, pass.stream);
  if (scale_) scaled_sum(context_, pass, dresidual, Tensor(), dresidual, scale_);
  LayerActivations a = kept;
  a.layer_inputs = pass.across.layer_inputs;
  Tensor remade_delta;
  if (keep_ >= Keep::attention) {
    // In tiles the stream after attention is made for one at a time, so its place is free.
    mixer_->complete(pass, a, before < n, behind < n ? residual.middle : Tensor());
    if (behind == n) {
      a.middle = arena.acquire("after attention", t, {n, context_.spec.hidden});
      if (context_.spec.input_norms) a.inv_rms2 = arena.acquire("inverse rms", DType::f32, {n});
    }
    remade_delta = residual.scratch;
    mixer_->forward(pass, a, residual, remade_delta, nullptr, before, static_cast<bool>(kept.mixed));
  }
  const auto acquire_dnormed = [&](std::int64_t rows) {
    return arena.acquire("gradient of a norm", t, {rows, context_.spec.hidden});
  };
  Tensor dnormed;
  gradients.require_gradients(unit_, pass.stream);
  if (behind < n) {
    mlp_.backward_in_tiles(pass, gradients, a, remade_delta, dresidual, behind);
    dnormed = acquire_dnormed(before);
  } else {
    dnormed = acquire_dnormed(n);
    mlp_.backward(pass, gradients, a, remade_delta, dnormed, dresidual);
  }
  // Nothing needs what the mixer added any more.
  mixer_->backward(pass, gradients, a, dnormed, dresidual, before, before < n ? residual.scratch : Tensor());
  pass.weights.release_weights(unit_, pass.stream);
  gradients.gradients_ready(unit_, pass.stream);
}

}  // namespace so
