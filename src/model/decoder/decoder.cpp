// Which part is where, from the outside in. layer_stack.h has the embedding (input_embedding.h, with layer_inputs.h)
// and the layers (decoder_layer.h); each is a token_mixer.h and an mlp_block.h with norms around them (block_norms.h),
// or one of the two, and above the layers is output_head.h. What goes from layer to layer beside the residual stream is
// in across_layers.h. A token mixer is an attention_block.h, a latent_block.h, a delta_block.h or a
// state_space_block.h. Attention calls the ops with an attention_setup.h, where tokens are split among ranks by
// slice_attention.h. What an MLP block has within is a feed_forward.h: dense_mlp.h, or expert_mlp.h with its
// router_loss.h, or both, dense_with_experts.h. All share a context.h, and in each call a pass.h; layers hand on
// layer_activations.h, of which they keep what keep.h says, and write gradients by gradients.h. What a layer did not
// keep is computed again just before backward uses it, by the calls of the forward pass, so to the same bits.
#include "model/decoder/decoder.h"

#include <utility>

#include "base/error.h"
#include "model/decoder/context.h"
#include "model/decoder/layer_activations.h"
#include "model/decoder/layer_stack.h"
#include "model/decoder/output_head.h"
#include "model/decoder/pass.h"
#include "model/decoder/router_loss.h"
#include "model/parameters.h"
#include "model/rope.h"

namespace so {
namespace {

DecoderSettings with_kept(DecoderSettings settings, const DecoderSpec& spec, int first_trained) {
  settings.keep = kept_by_layer(settings.keep, spec.layers, first_trained);
  return settings;
}

DecoderContext checked(DecoderContext context) {
  const DecoderSpec& spec = context.spec;
  check_formats(context.settings.formats);
  if (spec.has_fp8() && !context.ops.multiplies_fp8())
    fail(
        "--fp8: this GPU has no products in FP8 whose scales are of 128 elements; they need a Hopper GPU (H100, H200)");
  SO_CHECK(context.settings.loss_chunk_rows > 0, "loss chunk of {} rows", context.settings.loss_chunk_rows);
  const Tensor& rope = context.rope;
  SO_CHECK(spec.expert_layers() == 0 || inputs_of(spec.gate) == inputs_of(spec.experts.activation),
           "experts and layers without them, and only one of the two with gates");
  SO_CHECK(rope.rank() == 1 && rope.size() % rope_width(spec) == 0, "rope table");
  return context;
}

}  // namespace

struct Decoder::Parts {
  explicit Parts(DecoderContext of_model) : context(checked(std::move(of_model))), layers(context), head(context) {}
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  const DecoderContext context;  // before the parts, which refer to it
  const LayerStack layers;
  const OutputHead head;
};

Decoder::Decoder(const DecoderSpec& spec, const ParameterLayout& layout, Ops& ops, Tensor rope_table,
                 DecoderSettings settings, Tensor selection_biases, ActivationStore* store,
                 SequenceExchange* exchange) {
  const int first_trained = layout.first_trained_unit();
  parts_ = std::make_unique<const Parts>(DecoderContext{.spec = spec,
                                                        .index = make_parameter_index(spec, layout),
                                                        .first_trained = first_trained,
                                                        .ops = ops,
                                                        .rope = rope_table,
                                                        .selection_biases = selection_biases,
                                                        .settings = with_kept(std::move(settings), spec, first_trained),
                                                        .store = store,
                                                        .exchange = exchange});
}

Decoder::~Decoder() = default;

const DecoderSpec& Decoder::spec() const { return parts_->context.spec; }
std::vector<bool> Decoder::remade_inputs() const { return so::remade_inputs(parts_->context.settings.keep); }

void Decoder::forward_loss(Stream& stream, const DeviceBatch& batch, WeightSource& weights, Arena& arena, Tensor losses,
                           const ForwardObserver* observer) const {
  const auto& [context, layers, head] = *parts_;
  Arena::Scope scope(arena);
  const std::int64_t n = batch.tokens(), hidden = context.spec.hidden;
  ResidualStream residual(arena, context.activations(), n, hidden);
  Tensor normed = arena.acquire("final normed", context.activations(), {n, hidden});
  Tensor inv_rms = arena.acquire("inverse rms", DType::f32, {n});
  const DecoderPass pass{stream, batch, weights, arena, acquire_across_layers(context, arena, n, false),
                         {},     0,     observer};
  {
    Arena::Scope of_layers(arena);
    layers.run(pass, residual, nullptr);
    head.require(pass);
    head.norm(pass, normed, residual.middle, inv_rms, residual);
  }
  head.loss(pass, normed, residual.scratch, losses);
  head.release(pass);
}

void Decoder::forward_logits(Stream& stream, const DeviceBatch& batch, WeightSource& weights, Arena& arena,
                             Tensor logits, KvCache* cache) const {
  const auto& [context, layers, head] = *parts_;
  Arena::Scope scope(arena);
  const std::int64_t n = batch.tokens(), rows = logits.dim(0), hidden = context.spec.hidden;
  SO_CHECK(rows >= 1 && rows <= n, "{} rows of logits of {} tokens", rows, n);
  ResidualStream residual(arena, context.activations(), n, hidden);
  const DecoderPass pass{stream, batch, weights, arena, acquire_across_layers(context, arena, n, false), {}};
  layers.run(pass, residual, cache);
  Tensor normed = arena.acquire("final normed", context.activations(), {rows, hidden});
  Tensor inv_rms = arena.acquire("inverse rms", DType::f32, {rows});
  head.require(pass);
  residual = residual.rows(n - rows, rows);
  head.norm(pass, normed, residual.middle, inv_rms, residual);
  head.logits(pass, normed, logits);
  head.release(pass);
  if (cache) cache->used += n;
}

void Decoder::forward_backward(Stream& stream, const DeviceBatch& batch, WeightSource& weights, GradientSink& gradients,
                               Arena& arena, Tensor losses, float grad_scale) const {
  const auto& [context, layers, head] = *parts_;
  Arena::Scope scope(arena);
  const DecoderPass pass{stream,
                         batch,
                         weights,
                         arena,
                         acquire_across_layers(context, arena, batch.tokens(), true),
                         acquire_router_load(context, arena),
                         grad_scale};
  const DType t = context.activations();
  const Tensor dresidual = arena.acquire("gradient of the residual", t, {batch.tokens(), context.spec.hidden});
  ResidualStream residual(arena, t, batch.tokens(), context.spec.hidden);
  std::vector<LayerActivations> kept = layers.acquire(pass, residual);
  layers.forward(pass, kept, residual);
  head.forward_backward(pass, gradients, residual, losses, dresidual);
  layers.backward(pass, gradients, kept, residual, dresidual);
}

}  // namespace so
