#include "model/decoder/projection.h"

namespace so {

Projection::Projection(const DecoderContext& context, std::int64_t layer, Joined weight, Joined bias)
    : context_(context), weight_(weight), bias_(bias), fp8_(context.spec.layer(layer).fp8) {}

void Projection::forward(const DecoderPass& pass, Tensor out, const ProductInput& x) const {
  Ops& ops = context_.ops;
  const Tensor w = pass.weight(weight_), bias = pass.weight(bias_);
  if (!fp8_) return ops.linear(pass.stream, out, x.values, w, bias, Accumulate::overwrite);
  Arena::Scope scope(pass.arena);
  Fp8Matrix rows = x.codes;
  if (!rows) {
    rows = acquire_fp8(pass.arena, Fp8Matrix::Blocks::rows, out.dim(0), w.dim(1));
    ops.fp8_quantise(pass.stream, rows, {}, x.values);
  }
  const Fp8Matrix weight = acquire_fp8(pass.arena, Fp8Matrix::Blocks::squares, w.dim(0), w.dim(1));
  ops.fp8_quantise(pass.stream, weight, {}, w);
  ops.fp8_product(pass.stream, out, rows, weight, bias, Accumulate::overwrite);
}

ProjectionGradient::ProjectionGradient(const Projection& projection, const DecoderPass& pass, GradientSink& gradients,
                                       Tensor dy, RoundedByOp)
    : p_(projection), pass_(pass), dy_(dy), dw_(gradients.gradient(p_.weight_.first, p_.weight_.count)) {
  if (p_.bias_) db_ = gradients.gradient(p_.bias_.first, p_.bias_.count);
  if (!p_.fp8_) return;
  rows_ = acquire_fp8(pass.arena, Fp8Matrix::Blocks::rows, dy.dim(0), dy.dim(1));
  if (dw_.tensor) columns_ = acquire_fp8(pass.arena, Fp8Matrix::Blocks::rows, dy.dim(1), dy.dim(0));
}

ProjectionGradient::ProjectionGradient(const Projection& projection, const DecoderPass& pass, GradientSink& gradients,
                                       Tensor dy)
    : ProjectionGradient(projection, pass, gradients, dy, RoundedByOp{}) {
  if (p_.fp8_) p_.context_.ops.fp8_quantise(pass.stream, rows_, columns_, dy);
}

void ProjectionGradient::of_input(Tensor dx, Accumulate mode) const {
  Ops& ops = p_.context_.ops;
  const Tensor w = pass_.weight(p_.weight_);
  if (!p_.fp8_) return ops.linear_grad_input(pass_.stream, dx, dy_, w, mode);
  Arena::Scope scope(pass_.arena);
  const Fp8Matrix transposed = acquire_fp8(pass_.arena, Fp8Matrix::Blocks::squares, w.dim(1), w.dim(0));
  ops.fp8_quantise(pass_.stream, {}, transposed, w);
  ops.fp8_product(pass_.stream, dx, rows_, transposed, Tensor(), mode);
}

void ProjectionGradient::of_weight(const ProductInput& x) const {
  Arena::Scope scope(pass_.arena);
  if (p_.fp8_) return of_weight(dw_.tensor ? by_columns(x) : Fp8Matrix());
  if (dw_.tensor)
    p_.context_.ops.linear_grad_weight(pass_.stream, dw_.tensor, dy_, x.values ? x.values : again(x.norm), dw_.mode);
  of_bias();
}

void ProjectionGradient::of_weight(const Fp8Matrix& x) const {
  if (x) p_.context_.ops.fp8_product(pass_.stream, dw_.tensor, columns_, x, Tensor(), dw_.mode);
  of_bias();
}

Fp8Matrix ProjectionGradient::acquire_columns(std::int64_t width) const {
  if (!dw_.tensor) return {};
  return acquire_fp8(pass_.arena, Fp8Matrix::Blocks::squares, width, dy_.dim(0));
}

Fp8Matrix ProjectionGradient::by_columns(const ProductInput& x) const {
  Ops& ops = p_.context_.ops;
  const Fp8Matrix columns = acquire_columns(x.values ? x.values.dim(1) : x.norm.x.dim(1));
  if (x.values)
    ops.fp8_quantise(pass_.stream, {}, columns, x.values);
  else
    ops.fp8_quantise_norm(pass_.stream, columns, x.norm.x, x.norm.inv_rms, x.norm.weight, x.norm.terms.weight_offset);
  return columns;
}

Tensor ProjectionGradient::again(const ProductInput::Norm& norm) const {
  const Tensor values = pass_.arena.acquire("norm made again", norm.x.dtype(), {norm.x.dim(0), norm.x.dim(1)});
  p_.context_.ops.add_rms_norm(pass_.stream, values, Tensor(), norm.inv_rms, norm.x, Tensor(), norm.weight, norm.terms);
  return values;
}

void ProjectionGradient::of_bias() const {
  if (db_.tensor) p_.context_.ops.linear_grad_bias(pass_.stream, db_.tensor, dy_, db_.mode);
}

}  // namespace so
