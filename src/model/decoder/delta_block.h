// Internal to the decoder: a gated delta layer's first block [Gated DeltaNet, Yang et al. 2024]. Norm, projections, a
// short convolution and the delta rule (delta_part.h), a norm with a gate, projection.
#pragma once

#include <cstdint>

#include "model/decoder/context.h"
#include "model/decoder/delta_part.h"
#include "model/decoder/layer_activations.h"
#include "model/decoder/pass.h"
#include "model/decoder/projection.h"
#include "model/decoder/slice_delta.h"
#include "model/decoder/token_mixer.h"

namespace so {

class DeltaBlock final : public MixerBlock {
 public:
  DeltaBlock(const DecoderContext& context, std::int64_t layer);

  std::string_view name_of_output() const override { return "the output of its delta rule"; }
  void complete(const DecoderPass& pass, LayerActivations& a, bool in_tiles, Tensor room) const override;
  void keep_output(const DecoderPass& pass, LayerActivations& a) const override;
  void keep_projections(const DecoderPass& pass, LayerActivations& a) const override;
  void keep_all(const DecoderPass& pass, LayerActivations& a) const override;
  void forward(const DecoderPass& pass, const LayerActivations& a, const ResidualStream& residual, Tensor out,
               KvCache* cache, std::int64_t tile, bool mixed) const override;
  void backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations a, Tensor dnormed, Tensor dresidual,
                std::int64_t tile, Tensor room) const override;

 private:
  // Computes a.qkv. What it acquires lasts as long as the caller's scope.
  void project(const DecoderPass& pass, const LayerActivations& a) const;
  // All heads of a batch that is whole, as far as `a` has what they work with.
  DeltaPart part_of(const DecoderPass& pass, const LayerActivations& a) const;
  void complete_rule_inputs(const DecoderPass& pass, LayerActivations& a) const;
  // Computes what the rule reads, and a.mixed unless it is there.
  void mix(const DecoderPass& pass, const LayerActivations& a, KvCache* cache, bool mixed) const;
  HeadNorm output_norm(const DecoderPass& pass, const LayerActivations& a) const;
  // The gate of the output, in all projections of a token, or in their gradient.
  Heads gate_in(Tensor projected) const;
  Heads output_in(Tensor mixed) const { return {mixed, 0, delta_.v_heads, delta_.v_dim}; }

  // dmixed is the gradient of the gated output, and becomes that of a.mixed; the gates' goes to dprojected, all of the
  // tokens of `a`. Returns the gated output, which is made again if it is not there.
  Tensor gate_backward(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a, Tensor dmixed,
                       Tensor dprojected) const;
  void mix_backward(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a, Tensor dmixed,
                    Tensor dprojected) const;

  const DecoderContext& context_;
  const DecoderSpec& spec_;
  const DeltaSpec& delta_;
  Ops& ops_;
  const std::int64_t layer_;
  const ParameterIndex::Layer& p_;
  const Projection qkv_;
  const SliceDelta sliced_;
};

}  // namespace so
