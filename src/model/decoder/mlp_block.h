// Internal to the decoder: the second block of a layer: norm, an MLP or experts, norm. And a third, if the layer has
// one (layer_input_block.h), which is run with it, tile by tile.
#pragma once

#include <memory>

#include "model/decoder/context.h"
#include "model/decoder/feed_forward.h"
#include "model/decoder/layer_input_block.h"

namespace so {

class MlpBlock {
 public:
  MlpBlock(const DecoderContext& context, std::int64_t layer);

  const FeedForward& feed_forward() const { return *feed_forward_; }
  // Whether forward() makes the whole residual stream behind the layer, and not what is added to a.middle.
  bool makes_stream() const { return static_cast<bool>(layer_input_); }
  // Acquires what forward() works with, as far as it is empty, for n tokens. Without a norm before the block a.normed2
  // becomes a.middle, which is there.
  void complete(Arena& arena, std::int64_t n, LayerActivations& a) const;

  // `out` holds what attention adds to a.x, of which a.middle is made, and becomes what the block adds to a.middle, or
  // the stream (makes_stream()). It works on `tile` tokens at a time.
  void forward(const DecoderPass& pass, const LayerActivations& a, Tensor out, std::int64_t tile) const;
  // dresidual, T [n, H], is the gradient of the residual stream behind the block, and becomes that of a.middle, before
  // it. `dnormed`: memory for T [n, H]. remade_delta: what attention adds to a.x, if a.middle is to be made again of
  // the two, for which it and a.inv_rms2 are memory; else empty. What is empty of a.normed2, a.gate_up and a.mlp_out is
  // computed again.
  void backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations a, Tensor remade_delta,
                Tensor dnormed, Tensor dresidual) const;
  // The same on `tile` tokens at a time, with memory for dnormed, a.middle and a.inv_rms2 of a tile from the arena.
  void backward_in_tiles(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a,
                         Tensor remade_delta, Tensor dresidual, std::int64_t tile) const;

 private:
  // Computes `out` from a.normed2, by way of a.mlp_out if a norm lies between.
  void run(const DecoderPass& pass, const LayerActivations& a, Tensor out, bool first_rows) const;
  // Makes a.gate_up, a.mlp_out and its inv_rms again; `room` becomes a.mlp_out, `spare` what the block adds.
  void remake_output(const DecoderPass& pass, LayerActivations& a, Tensor room, Tensor spare) const;
  // The third block's backward pass; `added` holds what the MLP adds, and is overwritten.
  void layer_input_backward(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a, Tensor added,
                            Tensor dresidual) const;

  const DecoderContext& context_;
  const ParameterIndex::Layer& p_;
  std::unique_ptr<const FeedForward> feed_forward_;
  const LayerInputBlock layer_input_;
};

}  // namespace so
