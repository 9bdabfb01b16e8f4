#include "model/decoder/mlp_block.h"

#include <vector>

#include "base/error.h"
#include "model/decoder/block_norms.h"
#include "model/decoder/dense_mlp.h"
#include "model/decoder/dense_with_experts.h"
#include "model/decoder/expert_mlp.h"
#include "model/decoder/gradients.h"

namespace so {
namespace {

std::unique_ptr<const FeedForward> make_feed_forward(const DecoderContext& context, std::int64_t layer) {
  if (context.spec.layer(layer).experts && context.spec.experts.shared_apart)
    return std::make_unique<DenseWithExperts>(context, layer);
  if (context.spec.layer(layer).experts) return std::make_unique<ExpertMlp>(context, layer);
  return std::make_unique<DenseMlp>(context, layer);
}

}  // namespace

MlpBlock::MlpBlock(const DecoderContext& context, std::int64_t layer)
    : context_(context),
      p_(context.parameters(layer)),
      feed_forward_(make_feed_forward(context, layer)),
      layer_input_(context, layer) {}

ProductInput MlpBlock::acquire_normed(Arena& arena, std::int64_t n) const {
  return ProductInput::acquire(arena, "normed middle", context_.activations(), n, context_.spec.hidden,
                               feed_forward_->reads_codes());
}

void MlpBlock::keep_all(Arena& arena, std::int64_t n, LayerActivations& a) const {
  if (context_.spec.input_norms && !feed_forward_->reads_codes()) a.normed2 = acquire_normed(arena, n);
  if (feed_forward_->keeps_activated()) feed_forward_->complete(arena, n, a);
}

void MlpBlock::complete(Arena& arena, std::int64_t n, LayerActivations& a) const {
  if (context_.spec.input_norms) {
    acquire_if_empty(arena, a.inv_rms2, "inverse rms", DType::f32, {n});
    if (!a.normed2) a.normed2 = acquire_normed(arena, n);
  } else {
    a.normed2 = a.middle;
  }
  if (context_.spec.output_norms) acquire_output_norm(context_, arena, n, a.mlp_out, a.mlp_out_inv_rms);
  feed_forward_->complete(arena, n, a);
}

void MlpBlock::run(const DecoderPass& pass, const LayerActivations& a, Tensor out, bool first_rows) const {
  feed_forward_->forward(pass, a, a.mlp_out ? a.mlp_out : out, first_rows);
  block_output_norm(context_, pass, p_.mlp_output_norm, out, a.mlp_out, a.mlp_out_inv_rms);
}

void MlpBlock::forward(const DecoderPass& pass, const LayerActivations& a, const ResidualStream& input, Tensor out,
                       std::int64_t tile) const {
  const std::int64_t n = pass.tokens();
  for_each_tile(n, tile, [&](std::int64_t first, std::int64_t count) {
    Arena::Scope scope(pass.arena);
    LayerActivations part = tile < n ? a.rows(first, count) : a;
    const ResidualStream before = input.rows(first, count);
    const Tensor added = out.rows(first, count);
    complete(pass.arena, count, part);
    block_input(context_, pass, p_.mlp_norm, part.normed2, part.inv_rms2, part.middle, before.x, before.delta,
                before.scale);
    run(pass, part, added, first == 0);
    if (!layer_input_) return;
    context_.ops.add_scaled(pass.stream, added, part.middle, added, 1);
    layer_input_.forward(pass, part.layer_inputs, added);
  });
}

void MlpBlock::remake_output(const DecoderPass& pass, LayerActivations& a, Tensor room, Tensor spare) const {
  const std::int64_t n = spare.dim(0);
  SO_CHECK(room && !a.gate_up, "an MLP's output made again, though its products were kept");
  a.mlp_out = room;
  a.mlp_out_inv_rms = pass.arena.acquire("inverse rms", DType::f32, {n});
  feed_forward_->complete_outputs(pass.arena, n, a);
  feed_forward_->complete_gate_up(pass.arena, n, a);
  Arena::Scope scope(pass.arena);
  LayerActivations again = a;
  feed_forward_->complete(pass.arena, n, again);
  run(pass, again, spare, false);
}

void MlpBlock::backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations a,
                        const ResidualStream& input, Tensor dnormed, Tensor dresidual) const {
  Arena::Scope scope(pass.arena);
  if (!a.normed2) {
    if (p_.mlp_norm && !(feed_forward_->reads_codes() && a.gate_up))
      a.normed2 = acquire_normed(pass.arena, dresidual.dim(0));
    block_input(context_, pass, p_.mlp_norm, a.normed2, a.inv_rms2, a.middle, input.x, input.delta, input.scale);
  }
  if (p_.mlp_output_norm && !a.mlp_out)
    remake_output(pass, a, input.delta, dnormed);
  else if (layer_input_)
    block_output_norm(context_, pass, p_.mlp_output_norm, dnormed, a.mlp_out, a.mlp_out_inv_rms);
  if (layer_input_) layer_input_backward(pass, gradients, a, dnormed, dresidual);
  const Tensor dout = block_output_backward(context_, pass, gradients, p_.mlp_output_norm, a.mlp_out, a.mlp_out_inv_rms,
                                            dnormed, dresidual);
  feed_forward_->backward(pass, gradients, a, dnormed, dout, dresidual);
  block_input_backward(context_, pass, gradients, p_.mlp_norm, a.middle, a.inv_rms2, dnormed, dresidual);
}

void MlpBlock::layer_input_backward(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a,
                                    Tensor added, Tensor dresidual) const {
  const Tensor stream = added;
  context_.ops.add_scaled(pass.stream, stream, a.middle, added, 1);
  layer_input_.backward(pass, gradients, a.layer_inputs, stream, dresidual);
}

void MlpBlock::backward_in_tiles(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a,
                                 const ResidualStream& input, Tensor dresidual, std::int64_t tile) const {
  const DType t = context_.activations();
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);
  std::vector<Joined> parameters = feed_forward_->parameters();
  parameters.insert(parameters.begin(), p_.mlp_output_norm);
  parameters.push_back(p_.mlp_norm);
  if (layer_input_)
    for (const Joined& parameter : layer_input_.parameters()) parameters.push_back(parameter);
  TiledGradients sums(gradients, arena, parameters);
  for_each_tile(pass.tokens(), tile, [&](std::int64_t first, std::int64_t count) {
    Arena::Scope block(arena);
    LayerActivations part = a.rows(first, count);
    acquire_if_empty(arena, part.middle, "after attention", t, {count, context_.spec.hidden});
    if (context_.spec.input_norms) acquire_if_empty(arena, part.inv_rms2, "inverse rms", DType::f32, {count});
    const Tensor dnormed = arena.acquire("gradient of a norm", t, {count, context_.spec.hidden});
    backward(pass, sums, part, input.rows(first, count), dnormed, dresidual.rows(first, count));
  });
  sums.finish(context_.ops, pass.stream);
}

}  // namespace so
