// Internal to the decoder: what the layers read of each token beside the residual stream. It is made below them, for L
// layers of D columns each, of two parts: a table's rows times sqrt(D), and a projection of the embedding over sqrt(H),
// normed by layer. Their sum counts 1 / sqrt(2). [Gemma 3n]
#pragma once

#include "model/decoder/context.h"
#include "model/decoder/pass.h"

namespace so {

// All its parameters lie in the embedding's unit, whose weights and gradients the caller requires.
class LayerInputs {
 public:
  explicit LayerInputs(const DecoderContext& context);
  // False of a model whose layers have no such inputs; nothing else may be called then.
  explicit operator bool() const { return own_ > 0; }

  // Computes pass.across.layer_inputs from x, the scaled embedding, T [N, H].
  void forward(const DecoderPass& pass, Tensor x) const;
  // pass.across.layer_inputs is the gradient, and is overwritten. Adds that of x to dx.
  void backward(const DecoderPass& pass, GradientSink& gradients, Tensor x, Tensor dx) const;

 private:
  // Computes the projection before its norm, T [n, L D].
  void project(const DecoderPass& pass, Tensor projected, Tensor x) const;
  // From the gradient of the projection behind its norm, of some tokens.
  void projection_backward(const DecoderPass& pass, GradientSink& gradients, Tensor dnormed, Tensor x, Tensor dx) const;
  void scale(const DecoderPass& pass, Tensor values, float by) const;
  // How many tokens are worked on at a time: all, or a tile, as in the layer above.
  std::int64_t tile(const DecoderPass& pass) const;
  // The same memory with a row for each layer of a token.
  Tensor by_layer(Tensor rows) const { return rows.reshape({rows.size() / own_, own_}); }

  const DecoderContext& context_;
  Ops& ops_;
  const Joined table_, projection_, norm_;
  const std::int64_t width_, own_;  // L D and D
};

}  // namespace so
