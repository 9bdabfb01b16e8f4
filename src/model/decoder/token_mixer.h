// Internal to the decoder: the first block of a layer, in which tokens learn of each other. Norm, projections,
// attention, a gated delta rule or a state space, projection, norm.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "model/decoder/context.h"
#include "model/decoder/layer_activations.h"
#include "model/decoder/pass.h"

namespace so {

// What its functions acquire lasts as long as the caller's scope of the arena.
class MixerBlock {
 public:
  virtual ~MixerBlock() = default;

  // Names what forward() makes, for observers.
  virtual std::string_view name_of_output() const = 0;

  // Acquires what forward() works with, as far as it is empty; a.x is there. in_tiles: without what lasts for one tile.
  // `room`: memory that a.mixed may take, or empty. Without a norm before the block a.normed1 becomes a.x.
  virtual void complete(const DecoderPass& pass, LayerActivations& a, bool in_tiles = false,
                        Tensor room = {}) const = 0;
  // Each acquires a part of it, to be kept: a.mixed, with what its gradient needs; the projections and the inverse rms
  // of all norms; and, of a layer that keeps all, the rest.
  virtual void keep_output(const DecoderPass& pass, LayerActivations& a) const = 0;
  virtual void keep_projections(const DecoderPass& pass, LayerActivations& a) const = 0;
  virtual void keep_all(const DecoderPass& pass, LayerActivations& a) const = 0;

  // Computes `out`, which the block adds to the residual stream, and a.x, the stream itself, unless it is there
  // (residual.delta is empty). `out` may be the memory of residual.delta; it is empty where backward() alone reads what
  // is computed, and then the last product is left out. It works on `tile` tokens at a time, but for what mixes them;
  // `mixed`: a.mixed is there. `cache`: of the tokens before, or null.
  virtual void forward(const DecoderPass& pass, const LayerActivations& a, const ResidualStream& residual, Tensor out,
                       KvCache* cache, std::int64_t tile, bool mixed = false) const = 0;
  // dresidual, T [N, H], is the gradient of the residual stream behind the block, and becomes that of a.x, before it.
  // `dnormed`: memory for T [tile, H]. `room`: memory that the gradient of a.mixed may take, or empty. Of `a`, which
  // complete() has seen or which is kept, what keep_all() acquires may be empty: it is computed again.
  virtual void backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations a, Tensor dnormed,
                        Tensor dresidual, std::int64_t tile, Tensor room) const = 0;
};

// Makes the block of a layer, as its spec says; null: the layer has none.
std::unique_ptr<const MixerBlock> make_token_mixer(const DecoderContext& context, std::int64_t layer);

}  // namespace so
