// Internal to the decoder: attention as the first block of a layer. Norm, projections, rotation, attention, gate,
// projection, norm.
#pragma once

#include <cstdint>

#include "model/decoder/attention_setup.h"
#include "model/decoder/context.h"
#include "model/decoder/layer_activations.h"
#include "model/decoder/pass.h"
#include "model/decoder/projection.h"
#include "model/decoder/slice_attention.h"
#include "model/decoder/token_mixer.h"
#include "model/rope.h"

namespace so {

class AttentionBlock final : public MixerBlock {
 public:
  AttentionBlock(const DecoderContext& context, std::int64_t layer);

  std::string_view name_of_output() const override { return "the output of its attention"; }
  void complete(const DecoderPass& pass, LayerActivations& a, bool in_tiles, Tensor room) const override;
  void keep_output(const DecoderPass& pass, LayerActivations& a) const override;
  void keep_projections(const DecoderPass& pass, LayerActivations& a) const override;
  void keep_all(const DecoderPass& pass, LayerActivations& a) const override;
  void forward(const DecoderPass& pass, const LayerActivations& a, const ResidualStream& residual, Tensor out,
               KvCache* cache, std::int64_t tile, bool mixed) const override;
  void backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations a, Tensor dnormed, Tensor dresidual,
                std::int64_t tile, Tensor room) const override;

  // The parts between the heads and the last product, for blocks that make heads in another way (latent_block.h): a.qk
  // and a.qkv have queries, keys and values as this block's do.
  Tensor acquire_lse(const DecoderPass& pass) const;
  // Acquires what attention reads and makes of a slice, if the batch is one.
  void complete_slice(const DecoderPass& pass, LayerActivations& a) const;
  // Returns the layer's table of angles for those heads; empty if it does not rotate.
  Tensor rope(RotatedHeads heads) const;
  // Computes a.mixed from the rotated queries and keys.
  void attend(const DecoderPass& pass, const LayerActivations& a, KvCache* cache) const;
  void attend_backward(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a, Tensor dattention,
                       const AttentionHeads& gradient) const;

 private:
  void complete_head_norms(Arena& arena, std::int64_t tokens, LayerActivations& a) const;
  // The rotation of this layer, if it rotates.
  const RopeSpec& rotation() const;
  // Rotates queries and keys, and norms the heads that have a norm.
  void rotate(const DecoderPass& pass, const LayerActivations& a) const;
  // Takes the gradient of what rotate() made, and writes that of what it read to dqkv.
  void rotate_back(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a,
                   const AttentionHeads& gradient, Tensor dqkv) const;
  // Queries, keys and values that attention reads, without a cache: keys and values the layer's own or another's.
  AttentionHeads attended(const DecoderPass& pass, const LayerActivations& a) const;
  // The same with a cache, which the layer's own are written to.
  AttentionHeads cached(const DecoderPass& pass, const LayerActivations& a, KvCache& cache) const;
  // dattention is the gradient of the gated output, and becomes that of a.mixed; the gates' goes to dqkv, all of the
  // tokens of `a`. Returns the gated output, which is made again if it is not there.
  Tensor gate_backward(const DecoderPass& pass, const LayerActivations& a, Tensor dattention, Tensor dqkv) const;
  // Where attention's gradient goes: columns of dqkv, or memory in the caller's scope of the arena.
  AttentionHeads acquire_gradient(const DecoderPass& pass, Tensor dqkv) const;
  // Adds up the gradients of keys and values that several layers attend to: a layer that takes another's adds its own
  // to the sum, and the one that they are of adds the sum to its own.
  void share_gradient(const DecoderPass& pass, const AttentionHeads& gradient) const;

  const DecoderContext& context_;
  const DecoderSpec& spec_;
  Ops& ops_;
  const std::int64_t layer_;
  const AttentionShape shape_;
  const std::int64_t keys_of_;  // the layer whose keys and values are attended to, this one or one below
  const bool gives_keys_;       // to layers above
  const bool last_taker_;       // no layer above attends to the same ones
  const ParameterIndex::Layer& p_;
  const Projection qkv_, o_;
  const AttentionSetup setup_;
  const SliceAttention sliced_;
};

}  // namespace so
