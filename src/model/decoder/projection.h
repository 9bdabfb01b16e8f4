// Internal to the decoder: a product with a weight, y = x w^T + bias, and its gradients, in the activations' format or
// in FP8. In FP8 activations, gradients and the weight are rounded each time they are multiplied, with scales of their
// present values, as op fp8_quantise() does it; what layers keep and hand on stays in the activations' format.
#pragma once

#include <cstdint>

#include "model/decoder/context.h"
#include "model/decoder/pass.h"
#include "model/parameters.h"
#include "offload/memory/parameter_source.h"

namespace so {

class Projection {
 public:
  // In FP8 if its layer's products are.
  Projection(const DecoderContext& context, std::int64_t layer, Joined weight, Joined bias);
  // In the activations' format always: what FP8 is not for.
  Projection(const DecoderContext& context, Joined weight, Joined bias)
      : context_(context), weight_(weight), bias_(bias) {}

  Joined weight() const { return weight_; }
  Joined bias() const { return bias_; }

  // out = x w^T + bias.  x T [n, I], out T [n, O].
  void forward(const DecoderPass& pass, Tensor out, Tensor x) const;

 private:
  friend class ProjectionGradient;

  const DecoderContext& context_;
  const Joined weight_, bias_;
  const bool fp8_ = false;
};

// The gradients of one call, of its input, weight and bias. In FP8 its constructor rounds dy for both products in one
// pass, into memory that lasts as long as the caller's scope of the arena.
class ProjectionGradient {
 public:
  // dy T [n, O]. Asks `gradients` for what is trained of the projection.
  ProjectionGradient(const Projection& projection, const DecoderPass& pass, GradientSink& gradients, Tensor dy);

  // dx = dy w (+ dx).  dx T [n, I].
  void of_input(Tensor dx, Accumulate mode = Accumulate::overwrite) const;
  // The weight's and the bias's, as far as they are trained, from x T [n, I], what forward() was given.
  void of_weight(Tensor x) const;

 private:
  const Projection& p_;
  const DecoderPass& pass_;
  const Tensor dy_;
  GradientSink::Target dw_, db_;
  Fp8Matrix rows_, columns_;
};

}  // namespace so
