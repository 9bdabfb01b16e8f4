// Internal to the decoder: a product with a weight, y = x w^T + bias, and its gradients, in the activations' format or
// in FP8. In FP8 activations, gradients and the weight are rounded each time they are multiplied, with scales of their
// present values, to what op fp8_quantise() makes of them: by it, or by the op that makes the operand. What layers keep
// stays in the activations' format.
#pragma once

#include <cstdint>

#include "model/decoder/context.h"
#include "model/decoder/pass.h"
#include "model/decoder/product_input.h"
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
  bool in_fp8() const { return fp8_; }

  // out = x w^T + bias.  x [n, I], rounded here where it has no codes and the product is in FP8; out T [n, O].
  void forward(const DecoderPass& pass, Tensor out, const ProductInput& x) const;

 private:
  friend class ProjectionGradient;

  const DecoderContext& context_;
  const Joined weight_, bias_;
  const bool fp8_ = false;
};

// The gradients of one call, of its input, weight and bias. In FP8 both products read dy in codes, in memory that lasts
// as long as the caller's scope of the arena.
class ProjectionGradient {
 public:
  // dy T [n, O]. Asks `gradients` for what is trained of the projection, and rounds dy in one pass.
  ProjectionGradient(const Projection& projection, const DecoderPass& pass, GradientSink& gradients, Tensor dy);
  // The same in FP8 where another op rounds dy: it fills rows() and columns(), and dy if reads_values(), before any of
  // the gradients is made.
  struct RoundedByOp {};
  ProjectionGradient(const Projection& projection, const DecoderPass& pass, GradientSink& gradients, Tensor dy,
                     RoundedByOp);

  const Fp8Matrix& rows() const { return rows_; }
  const Fp8Matrix& columns() const { return columns_; }  // empty where the weight is not trained
  bool reads_values() const { return static_cast<bool>(db_.tensor); }

  // dx = dy w (+ dx).  dx T [n, I].
  void of_input(Tensor dx, Accumulate mode = Accumulate::overwrite) const;
  // The weight's and the bias's, as far as they are trained, from x [n, I], what forward() was given.
  void of_weight(const ProductInput& x) const;
  // The same from x in FP8, in what acquire_columns() gave.
  void of_weight(const Fp8Matrix& x) const;
  // Memory for x by columns, of this width, in squares; empty where the weight is not trained. It lasts as long as the
  // caller's scope of the arena.
  Fp8Matrix acquire_columns(std::int64_t width) const;

 private:
  Fp8Matrix by_columns(const ProductInput& x) const;
  Tensor again(const ProductInput::Norm& norm) const;
  void of_bias() const;

  const Projection& p_;
  const DecoderPass& pass_;
  const Tensor dy_;
  GradientSink::Target dw_, db_;
  Fp8Matrix rows_, columns_;
};

}  // namespace so
