// Internal to the decoder: the lowest unit, tokens to the residual stream, and to what layers read beside it.
#pragma once

#include "model/decoder/context.h"
#include "model/decoder/layer_inputs.h"
#include "model/decoder/pass.h"

namespace so {

class InputEmbedding {
 public:
  explicit InputEmbedding(const DecoderContext& context) : context_(context), layer_inputs_(context) {}
  // Computes x, T [N, H], and pass.across.layer_inputs.
  void forward(const DecoderPass& pass, Tensor x) const;
  // dresidual is the gradient of x, and is overwritten if there is a scale; pass.across.layer_inputs is the gradient of
  // what it was. `room`: memory for T [N, H]. Requires the unit's gradients; the caller reports them.
  void backward(const DecoderPass& pass, GradientSink& gradients, Tensor dresidual, Tensor room) const;

 private:
  // Computes x of the unit's weights, which are required.
  void embed(const DecoderPass& pass, Tensor x) const;
  float scale() const { return context_.table_scale(context_.spec.embedding_scale); }

  const DecoderContext& context_;
  const LayerInputs layer_inputs_;
};

}  // namespace so
