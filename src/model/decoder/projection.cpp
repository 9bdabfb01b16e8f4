#include "model/decoder/projection.h"

#include "ops/fp8_layout.h"

namespace so {
namespace {

Fp8Matrix acquire_fp8(Arena& arena, Fp8Matrix::Blocks blocks, std::int64_t rows, std::int64_t k) {
  const auto [across, along] = Fp8Matrix::scale_shape(blocks, rows, k);
  return {blocks, arena.acquire("codes in FP8", DType::u8, {fp8_stored_rows(rows), Fp8Matrix::width(k)}),
          arena.acquire("scales of FP8", DType::f32, {across, along})};
}

}  // namespace

Projection::Projection(const DecoderContext& context, std::int64_t layer, Joined weight, Joined bias)
    : context_(context), weight_(weight), bias_(bias), fp8_(context.spec.layer(layer).fp8) {}

void Projection::forward(const DecoderPass& pass, Tensor out, Tensor x) const {
  Ops& ops = context_.ops;
  const Tensor w = pass.weight(weight_), bias = pass.weight(bias_);
  if (!fp8_) return ops.linear(pass.stream, out, x, w, bias, Accumulate::overwrite);
  Arena::Scope scope(pass.arena);
  const Fp8Matrix rows = acquire_fp8(pass.arena, Fp8Matrix::Blocks::rows, x.dim(0), x.dim(1)),
                  weight = acquire_fp8(pass.arena, Fp8Matrix::Blocks::squares, w.dim(0), w.dim(1));
  ops.fp8_quantise(pass.stream, rows, {}, x);
  ops.fp8_quantise(pass.stream, weight, {}, w);
  ops.fp8_product(pass.stream, out, rows, weight, bias, Accumulate::overwrite);
}

ProjectionGradient::ProjectionGradient(const Projection& projection, const DecoderPass& pass, GradientSink& gradients,
                                       Tensor dy)
    : p_(projection), pass_(pass), dy_(dy), dw_(gradients.gradient(p_.weight_.first, p_.weight_.count)) {
  if (p_.bias_) db_ = gradients.gradient(p_.bias_.first, p_.bias_.count);
  if (!p_.fp8_) return;
  rows_ = acquire_fp8(pass.arena, Fp8Matrix::Blocks::rows, dy.dim(0), dy.dim(1));
  if (dw_.tensor) columns_ = acquire_fp8(pass.arena, Fp8Matrix::Blocks::rows, dy.dim(1), dy.dim(0));
  p_.context_.ops.fp8_quantise(pass.stream, rows_, columns_, dy);
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

void ProjectionGradient::of_weight(Tensor x) const {
  Ops& ops = p_.context_.ops;
  if (dw_.tensor && !p_.fp8_) ops.linear_grad_weight(pass_.stream, dw_.tensor, dy_, x, dw_.mode);
  if (dw_.tensor && p_.fp8_) {
    Arena::Scope scope(pass_.arena);
    const Fp8Matrix columns = acquire_fp8(pass_.arena, Fp8Matrix::Blocks::squares, x.dim(1), x.dim(0));
    ops.fp8_quantise(pass_.stream, {}, columns, x);
    ops.fp8_product(pass_.stream, dw_.tensor, columns_, columns, Tensor(), dw_.mode);
  }
  if (db_.tensor) ops.linear_grad_bias(pass_.stream, db_.tensor, dy_, db_.mode);
}

}  // namespace so
