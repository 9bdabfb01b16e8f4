#include "model/decoder/decoder_layer.h"

#include <algorithm>

#include "base/error.h"
#include "model/decoder/block_norms.h"

namespace so {

DecoderLayer::DecoderLayer(const DecoderContext& context, std::int64_t layer)
    : context_(context),
      unit_(layer_unit(layer)),
      scale_(context.parameters(layer).scale),
      keep_(context.keep_of(layer)),
      mixer_(make_token_mixer(context, layer)) {
  if (context.spec.layer(layer).mlp) mlp_.emplace(context, layer);
  SO_CHECK(mixer_ || mlp_, "layer {} has no block", layer);
  SO_CHECK(has_middle() || (!context.spec.output_norms && context.spec.layer_input == 0),
           "layer {} has one block, and norms behind it or an input of its own", layer);
}

LayerActivations DecoderLayer::acquire_kept(const DecoderPass& pass, Keep keep) const {
  LayerActivations a;
  if (keep == Keep::host || keep == Keep::nothing) return a;  // the input comes from elsewhere
  a.x = pass.arena.acquire("layer input", context_.activations(), {pass.tokens(), context_.spec.hidden});
  if (keep < Keep::input) keep_blocks(pass, keep, a);
  return a;
}

void DecoderLayer::keep_blocks(const DecoderPass& pass, Keep keep, LayerActivations& a) const {
  Arena& arena = pass.arena;
  const std::int64_t n = pass.tokens();
  const DType t = context_.activations();
  const DecoderSpec& s = context_.spec;
  if (mixer_) mixer_->keep_output(pass, a);
  if (keep == Keep::attention) return;
  if (mixer_) mixer_->keep_projections(pass, a);
  // The input of a norm after attention or MLP stays, or the product before it would be run again.
  if (s.output_norms) {
    acquire_output_norm(context_, arena, n, a.attention_out, a.attention_out_inv_rms);
    acquire_output_norm(context_, arena, n, a.mlp_out, a.mlp_out_inv_rms);
  }
  if (has_middle()) a.middle = arena.acquire("after attention", t, {n, s.hidden});
  if (mlp_) {
    if (s.input_norms) a.inv_rms2 = arena.acquire("inverse rms", DType::f32, {n});
    mlp_->feed_forward().complete_outputs(arena, n, a);
    mlp_->feed_forward().complete_routing(arena, n, a);
  }
  if (keep == Keep::no_gate_up) return;
  if (mlp_) mlp_->feed_forward().complete_gate_up(arena, n, a);
  if (keep == Keep::light) return;
  if (mixer_) mixer_->keep_all(pass, a);
  if (mlp_) mlp_->keep_all(arena, n, a);
}

std::int64_t DecoderLayer::mixer_tile(const LayerActivations& kept, std::int64_t n) const {
  const std::int64_t tile = context_.settings.tile_rows;
  return tile > 0 && !kept.normed1 ? std::min(n, tile) : n;
}

std::int64_t DecoderLayer::mlp_tile(const LayerActivations& kept, std::int64_t n) const {
  const std::int64_t tile = context_.settings.tile_rows;
  return tile > 0 && mlp_ && mlp_->feed_forward().works_in_tiles(kept) ? std::min(n, tile) : n;
}

void DecoderLayer::forward(const DecoderPass& pass, const LayerActivations& kept, ResidualStream& residual,
                           KvCache* cache) const {
  const std::int64_t n = pass.tokens(), before = mixer_tile(kept, n), behind = mlp_tile(kept, n);
  LayerActivations a = kept;
  a.layer_inputs = pass.across.layer_inputs;
  pass.weights.require_weights(unit_, pass.stream);
  if (mixer_) {
    Arena::Scope block(pass.arena);
    LayerActivations own = a;
    mixer_->complete(pass, own, before < n);
    // `delta` may still be the previous layer's, which the first norm has read by the time it is overwritten.
    mixer_->forward(pass, own, residual, residual.scratch, cache, before);
    pass.show(unit_, "its input", a.x);
    pass.show(unit_, mixer_->name_of_output(), residual.scratch);
    residual = residual.with(a.x, residual.scratch);
  }
  if (mlp_) {
    if (!mixer_) a.middle = a.x;
    if (!a.middle) a.middle = residual.middle;
    mlp_->forward(pass, a, residual, residual.scratch, behind);
    pass.show(unit_, mixer_ ? "its sum after attention" : "its input", a.middle);
    pass.show(unit_, mlp_->makes_stream() ? "its output" : mlp_->feed_forward().name_of_output(), residual.scratch);
    residual = residual.with(mlp_->makes_stream() ? Tensor() : a.middle, residual.scratch);
  }
  pass.weights.release_weights(unit_, pass.stream);
  residual.scale = scale_;
}

ResidualStream DecoderLayer::remake(const DecoderPass& pass, const LayerActivations& kept,
                                    const ResidualStream& residual, LayerActivations& a) const {
  const std::int64_t n = pass.tokens(), before = mixer_tile(kept, n), behind = mlp_tile(kept, n);
  // In tiles the stream after attention is made for one at a time, so its place is free.
  if (mixer_) mixer_->complete(pass, a, before < n, behind < n ? residual.middle : Tensor());
  if (mlp_ && behind == n) {
    if (mixer_) a.middle = pass.arena.acquire("after attention", context_.activations(), {n, context_.spec.hidden});
    if (context_.spec.input_norms) a.inv_rms2 = pass.arena.acquire("inverse rms", DType::f32, {n});
  }
  if (!mixer_) return residual;
  const Tensor delta = mlp_ ? residual.scratch : Tensor();
  mixer_->forward(pass, a, residual, delta, nullptr, before, static_cast<bool>(kept.mixed));
  return residual.with(a.x, delta);
}

void DecoderLayer::backward(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& kept,
                            const ResidualStream& residual, Tensor dresidual) const {
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);
  const std::int64_t n = pass.tokens(), before = mixer_tile(kept, n), behind = mlp_tile(kept, n);
  pass.weights.require_weights(unit_, pass.stream);
  if (scale_) scaled_sum(context_, pass, dresidual, Tensor(), dresidual, scale_);
  LayerActivations a = kept;
  a.layer_inputs = pass.across.layer_inputs;
  if (!mixer_) a.middle = a.x;
  const ResidualStream input =
      keep_ >= Keep::attention ? remake(pass, kept, residual, a) : residual.with(a.x, Tensor());
  const auto acquire_dnormed = [&](std::int64_t rows) {
    return arena.acquire("gradient of a norm", context_.activations(), {rows, context_.spec.hidden});
  };
  Tensor dnormed;
  gradients.require_gradients(unit_, pass.stream);
  if (behind < n) {
    mlp_->backward_in_tiles(pass, gradients, a, input, dresidual, behind);
  } else if (mlp_) {
    dnormed = acquire_dnormed(n);
    mlp_->backward(pass, gradients, a, input, dnormed, dresidual);
  }
  if (mixer_) {
    if (!dnormed) dnormed = acquire_dnormed(before);
    // Nothing needs what the mixer added any more.
    mixer_->backward(pass, gradients, a, dnormed, dresidual, before, before < n ? residual.scratch : Tensor());
  }
  pass.weights.release_weights(unit_, pass.stream);
  gradients.gradients_ready(unit_, pass.stream);
}

}  // namespace so
