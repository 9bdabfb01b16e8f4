// Internal to the decoder: a layer, token mixer and MLP or one of the two, and what it keeps for backward.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "model/decoder/context.h"
#include "model/decoder/keep.h"
#include "model/decoder/mlp_block.h"
#include "model/decoder/pass.h"
#include "model/decoder/token_mixer.h"

namespace so {

class DecoderLayer {
 public:
  DecoderLayer(const DecoderContext& context, std::int64_t layer);

  // Acquires what a layer with this `keep` keeps: its own for a backward pass, else Keep::input. Where that is no
  // input, or one that is kept on the host, the caller finds memory for the input.
  LayerActivations acquire_kept(const DecoderPass& pass, Keep keep) const;

  // Whether the residual stream between its two blocks needs a place: LayerActivations::middle.
  bool has_middle() const { return mixer_ && mlp_; }

  // Fills `kept`, memory for what the layer keeps and for its input, and leaves the residual stream that the next layer
  // reads. Requires and releases the layer's weights.
  void forward(const DecoderPass& pass, const LayerActivations& kept, ResidualStream& residual, KvCache* cache) const;
  // dresidual, T [N, H], is the gradient of the residual stream behind the layer, and becomes that of its input. The
  // input is in kept.x, or is made there of `residual` if that has a delta. Requires weights and gradients, and reports
  // these. The memory of residual.scratch and residual.middle is overwritten.
  void backward(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& kept,
                const ResidualStream& residual, Tensor dresidual) const;

 private:
  void keep_blocks(const DecoderPass& pass, Keep keep, LayerActivations& a) const;
  // Computes again what the mixer did not keep, in the arena, with a.x if the residual stream has a delta. Returns the
  // stream as the MLP reads it, which may be in part what `residual` has memory for.
  ResidualStream remake(const DecoderPass& pass, const LayerActivations& kept, const ResidualStream& residual,
                        LayerActivations& a) const;
  // Return how many tokens a layer that keeps this works on at a time before and behind the mixer: all, or a tile.
  std::int64_t mixer_tile(const LayerActivations& kept, std::int64_t tokens) const;
  std::int64_t mlp_tile(const LayerActivations& kept, std::int64_t tokens) const;

  const DecoderContext& context_;
  const int unit_;
  const Joined scale_;
  const Keep keep_;
  std::unique_ptr<const MixerBlock> mixer_;  // null, or mlp_ is: the layer has one block
  std::optional<MlpBlock> mlp_;
};

}  // namespace so
