// Internal to the decoder: the first block of a layer. Norm, projections, rotation, attention, projection, norm.
#pragma once

#include <cstdint>

#include "model/decoder/attention_setup.h"
#include "model/decoder/context.h"
#include "model/decoder/layer_activations.h"
#include "model/decoder/pass.h"
#include "model/decoder/slice_attention.h"
#include "model/rope.h"

namespace so {

class AttentionBlock {
 public:
  AttentionBlock(const DecoderContext& context, std::int64_t layer);

  // Acquires what forward() works with, as far as it is empty; a.x is there. in_tiles: without what lasts for one tile.
  // `room`: memory that attention's output may take, or empty. Without a norm before the block a.normed1 becomes a.x.
  void complete(const DecoderPass& pass, LayerActivations& a, bool in_tiles = false, Tensor room = {}) const;
  // Acquires attention's output and its log-sum-exp, to be kept.
  void keep_output(const DecoderPass& pass, LayerActivations& a) const;
  // Acquires the projections and the inverse rms of all norms before attention, to be kept.
  void keep_projections(const DecoderPass& pass, LayerActivations& a) const;

  // Computes `out`, which the block adds to the residual stream, and a.x, the stream itself, unless it is there
  // (residual.delta is empty). `out` may be the memory of residual.delta. It works on `tile` tokens at a time, but for
  // attention; `attended`: a.attention is there. `cache`: of keys and values, or null.
  void forward(const DecoderPass& pass, const LayerActivations& a, const ResidualStream& residual, Tensor out,
               KvCache* cache, std::int64_t tile, bool attended = false) const;
  // dresidual, T [N, H], is the gradient of the residual stream behind the block, and becomes that of a.x, before it.
  // `dnormed`: memory for T [tile, H]. `room`: memory that the gradient of attention's output may take, or empty. Of
  // `a`, which complete() has seen or which is kept, rotated queries and keys and a.normed1 may be empty: they are
  // computed again.
  void backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations a, Tensor dnormed, Tensor dresidual,
                std::int64_t tile, Tensor room) const;

 private:
  void complete_input(Arena& arena, std::int64_t tokens, LayerActivations& a) const;
  void complete_qk_norms(Arena& arena, std::int64_t tokens, LayerActivations& a) const;
  Tensor acquire_lse(const DecoderPass& pass) const;
  // Returns the layer's table of angles for those heads; empty if it does not rotate.
  Tensor rope(RotatedHeads heads) const;
  void rotate(const DecoderPass& pass, const LayerActivations& a) const;
  // dqkv is the gradient of what rotate() made, and then of what it read.
  void rotate_back(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a, Tensor dqkv) const;
  // Computes a.attention from the rotated queries and keys.
  void attend(const DecoderPass& pass, const LayerActivations& a, KvCache* cache) const;
  void attend_backward(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a, Tensor dattention,
                       Tensor dqkv) const;

  const DecoderContext& context_;
  const DecoderSpec& spec_;
  Ops& ops_;
  const std::int64_t layer_;
  const ParameterIndex::Layer& p_;
  const AttentionSetup setup_;
  const SliceAttention sliced_;
};

}  // namespace so
