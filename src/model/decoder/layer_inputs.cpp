#include "model/decoder/layer_inputs.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/decoder/block_norms.h"
#include "model/decoder/gradients.h"

namespace so {
namespace {

constexpr auto share_of_sum = static_cast<float>(std::numbers::sqrt2 / 2);

float projection_scale(const DecoderSpec& spec) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(spec.hidden)));
}

float table_scale(const DecoderContext& context) {
  return context.table_scale(std::sqrt(static_cast<double>(context.spec.layer_input)));
}

}  // namespace

LayerInputs::LayerInputs(const DecoderContext& context)
    : context_(context),
      ops_(context.ops),
      table_(context.index.layer_input_table),
      projection_(context.index.layer_input_projection),
      norm_(context.index.layer_input_norm),
      width_(context.spec.layer_inputs_width()),
      own_(context.spec.layer_input) {}

std::int64_t LayerInputs::tile(const DecoderPass& pass) const {
  const std::int64_t tile = context_.settings.tile_rows;
  return tile > 0 && context_.keep_of(0) != Keep::all ? std::min(tile, pass.tokens()) : pass.tokens();
}

void LayerInputs::scale(const DecoderPass& pass, Tensor values, float by) const {
  ops_.add_scaled(pass.stream, values, Tensor(), values, by);
}

void LayerInputs::project(const DecoderPass& pass, Tensor projected, Tensor x) const {
  ops_.linear(pass.stream, projected, x, pass.weight(projection_), Tensor(), Accumulate::overwrite);
  scale(pass, projected, projection_scale(context_.spec));
}

void LayerInputs::forward(const DecoderPass& pass, Tensor x) const {
  for_each_tile(pass.tokens(), tile(pass), [&](std::int64_t first, std::int64_t count) {
    Arena::Scope scope(pass.arena);
    const Tensor sum = pass.across.layer_inputs.rows(first, count);
    const Tensor part = pass.arena.acquire("part of layers' inputs", context_.activations(), {count, width_});
    const Tensor inv_rms = pass.arena.acquire("inverse rms", DType::f32, {count * context_.spec.layers});
    project(pass, part, x.rows(first, count));
    block_output_norm(context_, pass, norm_, by_layer(sum), by_layer(part), inv_rms);
    ops_.embedding(pass.stream, part, pass.weight(table_), pass.batch.ids.rows(first, count));
    ops_.add_scaled(pass.stream, sum, sum, part, table_scale(context_));
    scale(pass, sum, share_of_sum);
  });
}

void LayerInputs::backward(const DecoderPass& pass, GradientSink& gradients, Tensor x, Tensor dx) const {
  const Tensor dsum = pass.across.layer_inputs;
  scale(pass, dsum, share_of_sum);
  for_each_gradient_tile(ops_, pass, gradients, {projection_, norm_}, tile(pass),
                         [&](GradientSink& sink, std::int64_t first, std::int64_t count) {
                           projection_backward(pass, sink, dsum.rows(first, count), x.rows(first, count),
                                               dx.rows(first, count));
                         });
  const auto dtable = gradients.gradient(table_.first);
  if (!dtable.tensor) return;
  scale(pass, dsum, table_scale(context_));
  ops_.embedding_grad(pass.stream, dtable.tensor, dsum, pass.batch.ids, dtable.mode);
}

void LayerInputs::projection_backward(const DecoderPass& pass, GradientSink& gradients, Tensor dnormed, Tensor x,
                                      Tensor dx) const {
  const std::int64_t n = x.dim(0);
  const DType t = context_.activations();
  const Tensor projected = pass.arena.acquire("projection for layers", t, {n, width_});
  const Tensor normed = pass.arena.acquire("part of layers' inputs", t, {n, width_});
  const Tensor inv_rms = pass.arena.acquire("inverse rms", DType::f32, {n * context_.spec.layers});
  project(pass, projected, x);
  block_output_norm(context_, pass, norm_, by_layer(normed), by_layer(projected), inv_rms);
  const Tensor dprojected = normed;
  norm_backward(context_, pass, gradients, norm_, by_layer(projected), inv_rms, by_layer(dnormed), Tensor(),
                by_layer(dprojected));
  scale(pass, dprojected, projection_scale(context_.spec));
  grad_linear(ops_, pass.stream, gradients, projection_, {}, dprojected, x);
  ops_.linear_grad_input(pass.stream, dx, dprojected, pass.weight(projection_), Accumulate::add);
}

}  // namespace so
