// Internal to the decoder: attention by latents as the first block of a layer [MLA, DeepSeek-AI 2024]. Norm, a product
// that makes latents and the shared part of the keys, a norm of each latent, products that make heads of them,
// rotation, attention, projection. Keys and values are expanded to all heads, in training and in the KV cache.
#pragma once

#include <cstdint>

#include "model/decoder/attention_block.h"
#include "model/decoder/context.h"
#include "model/decoder/layer_activations.h"
#include "model/decoder/pass.h"
#include "model/decoder/projection.h"
#include "model/decoder/token_mixer.h"

namespace so {

class LatentBlock final : public MixerBlock {
 public:
  LatentBlock(const DecoderContext& context, std::int64_t layer);

  std::string_view name_of_output() const override { return "the output of its attention"; }
  void complete(const DecoderPass& pass, LayerActivations& a, bool in_tiles, Tensor room) const override;
  void keep_output(const DecoderPass& pass, LayerActivations& a) const override;
  void keep_projections(const DecoderPass& pass, LayerActivations& a) const override;
  void keep_all(const DecoderPass& pass, LayerActivations& a) const override;
  void forward(const DecoderPass& pass, const LayerActivations& a, const ResidualStream& residual, Tensor out,
               KvCache* cache, std::int64_t tile, bool mixed) const override;
  void backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations a, Tensor dnormed, Tensor dresidual,
                std::int64_t tile, Tensor room) const override;

 private:
  // T [n, q_rank] and T [n, kv_rank].
  struct Latents {
    Tensor q, kv;
  };

  // Where the latents and the shared part of the keys lie in the first product, or in its gradient.
  Heads q_latent_in(Tensor projected) const { return {projected, 0, 1, latent_.q_rank}; }
  Heads kv_latent_in(Tensor projected) const { return {projected, latent_.q_rank, 1, latent_.kv_rank}; }
  Heads shared_key_in(Tensor projected) const {
    return {projected, latent_.q_rank + latent_.kv_rank, 1, latent_.rotary_dim};
  }
  // The parts of heads as attention takes them: those that begin at this column, and what rotates of them.
  Heads still_part(Tensor rows, std::int64_t column) const;
  Heads rotating_part(Tensor rows, std::int64_t column) const;
  // The parts of what the second product makes of the latent of keys and values, or of its gradient.
  Heads made_keys(Tensor rows) const;
  Heads made_values(Tensor rows) const;
  HeadNorm q_norm(const DecoderPass& pass, const LayerActivations& a) const;
  HeadNorm kv_norm(const DecoderPass& pass, const LayerActivations& a) const;

  // Both make what they do of the tokens of `a`, which have these positions. The latents last as long as the caller's
  // scope of the arena.
  Latents make_latents(const DecoderPass& pass, const LayerActivations& a) const;
  void expand(const DecoderPass& pass, const LayerActivations& a, Tensor positions) const;
  // Computes the gradient of a.qkv from those of the heads; dq is overwritten.
  void expand_backward(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a, Tensor positions,
                       Tensor dq, Tensor dkv, Tensor dprojected) const;
  void latent_backward(const DecoderPass& pass, GradientSink& gradients, Joined heads, Joined norm_weight,
                       const HeadNorm& norm, Tensor dheads, Tensor latent, Heads projected, Heads dprojected) const;
  // `a` with the heads in place of the projections, as attention takes them.
  static LayerActivations with_heads(const LayerActivations& a);

  const DecoderContext& context_;
  const DecoderSpec& spec_;
  const LatentSpec& latent_;
  const AttentionShape shape_;
  Ops& ops_;
  const ParameterIndex::Layer& p_;
  const Projection qkv_;
  const AttentionBlock attention_;  // what is between the heads and the last product
};

}  // namespace so
