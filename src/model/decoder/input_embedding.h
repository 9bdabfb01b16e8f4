// Internal to the decoder: the lowest unit, tokens to the residual stream.
#pragma once

#include "model/decoder/context.h"
#include "model/decoder/pass.h"

namespace so {

class InputEmbedding {
 public:
  explicit InputEmbedding(const DecoderContext& context) : context_(context) {}
  // Computes x, T [N, H].
  void forward(const DecoderPass& pass, Tensor x) const;
  // dresidual is the gradient of x, and is overwritten if there is a scale. Requires the unit's gradients; the caller
  // reports them.
  void backward(const DecoderPass& pass, GradientSink& gradients, Tensor dresidual) const;

 private:
  float scale() const;

  const DecoderContext& context_;
};

}  // namespace so
