#include "model/decoder/mixer_input.h"

#include "model/decoder/block_norms.h"
#include "model/decoder/gradients.h"

namespace so {
namespace {

void acquire_normed(const DecoderContext& context, Arena& arena, bool in_codes, std::int64_t n, LayerActivations& a) {
  if (!context.spec.input_norms)
    a.normed1 = a.x;
  else if (!a.normed1)
    a.normed1 = ProductInput::acquire(arena, "normed input", context.activations(), n, context.spec.hidden, in_codes);
}

}  // namespace

void complete_mixer_input(const DecoderContext& context, Arena& arena, const Projection& projection, std::int64_t n,
                          LayerActivations& a) {
  if (!projection.in_fp8()) acquire_normed(context, arena, false, n, a);
}

void make_projections(const DecoderContext& context, const DecoderPass& pass, const Projection& projection,
                      const ParameterIndex::Layer& p, const LayerActivations& a, const ResidualStream& residual,
                      std::int64_t tile, const std::function<void(const LayerActivations& part)>& project) {
  const std::int64_t n = pass.tokens();
  const auto rows = [](Tensor t, std::int64_t first, std::int64_t count) { return t ? t.rows(first, count) : t; };
  // The residual stream is x + residual_scale * delta; the sum is made where it is first read, by the norm.
  for_each_tile(n, tile, [&](std::int64_t first, std::int64_t count) {
    Arena::Scope scope(pass.arena);
    LayerActivations part = tile < n ? a.rows(first, count) : a;
    acquire_normed(context, pass.arena, projection.in_fp8(), count, part);
    block_input(context, pass, p.input_norm, part.normed1, part.inv_rms1, part.x, rows(residual.x, first, count),
                rows(residual.delta, first, count), residual.scale);
    project(part);
  });
}

void projections_backward(const DecoderContext& context, const DecoderPass& pass, GradientSink& gradients,
                          const Projection& projection, const ParameterIndex::Layer& p, const LayerActivations& a,
                          Tensor dprojected, Tensor dnormed, Tensor dresidual, std::int64_t tile,
                          const std::function<Tensor(const LayerActivations& part, Tensor dtile)>& order) {
  const std::int64_t n = pass.tokens();
  for_each_gradient_tile(context.ops, pass, gradients, {p.qkv, p.qkv_bias, p.input_norm}, tile,
                         [&](GradientSink& sink, std::int64_t first, std::int64_t count) {
                           LayerActivations part = tile < n ? a.rows(first, count) : a;
                           Tensor dtile = dprojected.rows(first, count);
                           const Tensor dinput = dnormed.rows(0, count);
                           if (order) dtile = order(part, dtile);
                           const ProjectionGradient gradient(projection, pass, sink, dtile);
                           gradient.of_input(dinput);
                           if (!part.normed1)
                             block_input(context, pass, p.input_norm, part.normed1, part.inv_rms1, part.x, Tensor(),
                                         Tensor());
                           gradient.of_weight(part.normed1);
                           block_input_backward(context, pass, sink, p.input_norm, part.x, part.inv_rms1, dinput,
                                                dresidual.rows(first, count));
                         });
}

}  // namespace so
