#include "model/decoder/output_head.h"

#include <algorithm>

#include "model/decoder/block_norms.h"
#include "model/decoder/gradients.h"
#include "model/decoder/router_loss.h"
#include "model/parameters.h"

namespace so {

void OutputHead::require(const DecoderPass& pass) const {
  pass.weights.require_weights(head_unit(context_.spec), pass.stream);
  if (context_.spec.tied_embeddings) pass.weights.require_weights(0, pass.stream);
}

void OutputHead::release(const DecoderPass& pass) const {
  pass.weights.release_weights(head_unit(context_.spec), pass.stream);
  if (context_.spec.tied_embeddings) pass.weights.release_weights(0, pass.stream);
}

void OutputHead::norm(const DecoderPass& pass, Tensor normed, Tensor sum, Tensor inv_rms,
                      const ResidualStream& residual) const {
  const DecoderSpec& s = context_.spec;
  ProductInput made = normed;
  block_input(context_, pass, {context_.index.final_norm, 1}, made, inv_rms, sum, residual.x, residual.delta,
              residual.scale);
  if (const auto scale = static_cast<float>(s.logits_scale); scale != 1)
    context_.ops.add_scaled(pass.stream, normed, Tensor(), normed, scale);
}

Ops::LinearCrossEntropy OutputHead::loss_call(const DecoderPass& pass, Tensor normed, Tensor gathered,
                                              Tensor losses) const {
  Ops::LinearCrossEntropy loss;
  loss.hidden = normed;
  loss.weight = pass.weights.weight(context_.index.lm_head);
  loss.targets = pass.batch.targets;
  loss.losses = losses;
  loss.label_smoothing = context_.settings.label_smoothing;
  loss.soft_cap = static_cast<float>(context_.spec.logits_cap);
  loss.rows = pass.batch.loss_rows;
  if (loss.rows) loss.gathered = gathered;
  return loss;
}

Tensor OutputHead::acquire_logits_chunk(const DecoderPass& pass) const {
  const std::int64_t rows = std::min(pass.tokens(), context_.settings.loss_chunk_rows);
  const OpsMemory& memory = context_.ops.memory();
  return pass.arena.acquire("logits chunk", memory.logits_dtype(context_.activations()),
                            {rows, memory.logits_stride(context_.spec.vocab)});
}

void OutputHead::loss(const DecoderPass& pass, Tensor normed, Tensor gathered, Tensor losses) const {
  const int unit = head_unit(context_.spec);
  pass.show(unit, "the final norm", normed);
  Ops::LinearCrossEntropy call = loss_call(pass, normed, gathered, losses);
  call.workspace = acquire_logits_chunk(pass);
  context_.ops.linear_cross_entropy(pass.stream, call);
  pass.show(unit, "the loss of the logits", losses);
}

void OutputHead::logits(const DecoderPass& pass, Tensor normed, Tensor logits) const {
  context_.ops.linear(pass.stream, logits, normed, pass.weights.weight(context_.index.lm_head), Tensor(),
                      Accumulate::overwrite);
  if (const auto cap = static_cast<float>(context_.spec.logits_cap); cap > 0)
    context_.ops.soft_cap(pass.stream, logits, cap);
}

void OutputHead::forward_backward(const DecoderPass& pass, GradientSink& gradients, const ResidualStream& residual,
                                  Tensor losses, Tensor dresidual) const {
  const DecoderSpec& s = context_.spec;
  const ParameterIndex& index = context_.index;
  Ops& ops = context_.ops;
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);
  Stream& stream = pass.stream;
  const std::int64_t n = pass.tokens(), tile = context_.settings.tile_rows;
  const DType t = context_.activations();
  // Where the last layer keeps its sum after attention for backward, the sum goes elsewhere.
  Tensor x;
  if (context_.keep_of(s.layers - 1) >= Keep::input) x = residual.middle;
  acquire_if_empty(arena, x, "final input", t, {n, s.hidden});
  Tensor inv_rms = arena.acquire("inverse rms", DType::f32, {n});
  Tensor normed = arena.acquire("final normed", t, {n, s.hidden});
  const Tensor dnormed = dresidual;  // first the gradient of the norm's output, then of its input
  require(pass);
  norm(pass, normed, x, inv_rms, residual);
  // The last block's output is of no other use once the norm has read it.
  Ops::LinearCrossEntropy loss = loss_call(pass, normed, residual.scratch, losses);
  loss.dhidden = dnormed;
  gradients.require_gradients(head_unit(s), stream);
  if (s.tied_embeddings) gradients.require_gradients(0, stream);
  const auto project = [&](GradientSink& sink) {
    const auto dhead = sink.gradient(index.lm_head);
    loss.dweight = dhead.tensor;
    loss.dweight_mode = dhead.mode;
    loss.grad_scale = pass.grad_scale;
    loss.workspace = acquire_logits_chunk(pass);
    ops.linear_cross_entropy(stream, loss);
  };
  if (tile > 0 && n > tile) {
    // A bf16 sum over all chunks of logits would lose what each adds.
    const Joined head{index.lm_head, 1};
    TiledGradients sum(gradients, arena, {&head, 1});
    project(sum);
    sum.finish(ops, stream);
  } else {
    project(gradients);
  }
  add_router_loss(context_, pass, losses);
  if (const auto scale = static_cast<float>(s.logits_scale); scale != 1)
    ops.add_scaled(stream, dnormed, Tensor(), dnormed, scale);
  norm_backward(context_, pass, gradients, {index.final_norm, 1}, x, inv_rms, dnormed, Tensor(), dresidual);
  release(pass);
  gradients.gradients_ready(head_unit(s), stream);
}

}  // namespace so
