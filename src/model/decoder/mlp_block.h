// Internal to the decoder: the second block of a layer, or its only one: norm, an MLP or experts, norm. And a third, if
// the layer has one (layer_input_block.h), which is run with it, tile by tile.
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
  // Acquires what a layer that keeps all keeps beside the products and what lies before norms.
  void keep_all(Arena& arena, std::int64_t n, LayerActivations& a) const;

  // `input` is the residual stream before the block, of which a.middle is made, unless it is there (input.delta is
  // empty). `out` becomes what the block adds to a.middle, or the stream (makes_stream()); it may be the memory of
  // input.delta. It works on `tile` tokens at a time.
  void forward(const DecoderPass& pass, const LayerActivations& a, const ResidualStream& input, Tensor out,
               std::int64_t tile) const;
  // dresidual, T [n, H], is the gradient of the residual stream behind the block, and becomes that of a.middle, before
  // it. `dnormed`: memory for T [n, H]. `input`: as in forward(); where it has a delta, a.middle and a.inv_rms2 are
  // memory, and so is the delta once the sum is made. What is empty of a.normed2, a.gate_up and a.mlp_out is computed
  // again.
  void backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations a, const ResidualStream& input,
                Tensor dnormed, Tensor dresidual) const;
  // The same on `tile` tokens at a time, with memory for dnormed, a.middle and a.inv_rms2 of a tile from the arena.
  void backward_in_tiles(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a,
                         const ResidualStream& input, Tensor dresidual, std::int64_t tile) const;

 private:
  // Computes `out` from a.normed2, by way of a.mlp_out if a norm lies between.
  void run(const DecoderPass& pass, const LayerActivations& a, Tensor out, bool first_rows) const;
  ProductInput acquire_normed(Arena& arena, std::int64_t n) const;
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
