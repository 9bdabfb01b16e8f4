// Internal to the decoder: the highest unit. The last norm, the output projection, and the loss.
#pragma once

#include "model/decoder/context.h"
#include "model/decoder/pass.h"

namespace so {

class OutputHead {
 public:
  explicit OutputHead(const DecoderContext& context) : context_(context) {}

  // norm(), loss() and logits() lie between these two, which require and release the unit's weights, and the
  // embedding's where it is the output projection too.
  void require(const DecoderPass& pass) const;
  void release(const DecoderPass& pass) const;
  // Computes the `sum` of the residual stream, which may be its x, and `normed`, the norm of it times the scale of the
  // logits; inv_rms: f32 [n].
  void norm(const DecoderPass& pass, Tensor normed, Tensor sum, Tensor inv_rms, const ResidualStream& residual) const;
  // Writes the losses, f32 [N], of the logits alone. `gathered`, T [N, H], is overwritten if the batch says which rows
  // have a target.
  void loss(const DecoderPass& pass, Tensor normed, Tensor gathered, Tensor losses) const;
  // Writes logits, f32 [rows, V].
  void logits(const DecoderPass& pass, Tensor normed, Tensor logits) const;
  // Does all this and goes straight back: losses, with the routers' load-balancing loss, and the gradient of the
  // residual stream that the layers leave. residual.x and residual.scratch may be overwritten. Requires weights and
  // gradients, and reports these.
  void forward_backward(const DecoderPass& pass, GradientSink& gradients, const ResidualStream& residual, Tensor losses,
                        Tensor dresidual) const;

 private:
  Ops::LinearCrossEntropy loss_call(const DecoderPass& pass, Tensor normed, Tensor gathered, Tensor losses) const;
  Tensor acquire_logits_chunk(const DecoderPass& pass) const;

  const DecoderContext& context_;
};

}  // namespace so
