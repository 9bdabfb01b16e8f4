// Internal to the decoder: a state space as a layer's first block [Mamba2, Dao & Gu 2024]. Norm, projections, a short
// convolution and the state space (state_space_part.h), a gate and a norm of each group, projection.
#pragma once

#include <cstdint>

#include "model/decoder/context.h"
#include "model/decoder/layer_activations.h"
#include "model/decoder/pass.h"
#include "model/decoder/projection.h"
#include "model/decoder/slice_state_space.h"
#include "model/decoder/state_space_part.h"
#include "model/decoder/token_mixer.h"

namespace so {

class StateSpaceBlock final : public MixerBlock {
 public:
  StateSpaceBlock(const DecoderContext& context, std::int64_t layer);

  std::string_view name_of_output() const override { return "the output of its state space"; }
  void complete(const DecoderPass& pass, LayerActivations& a, bool in_tiles, Tensor room) const override;
  void keep_output(const DecoderPass& pass, LayerActivations& a) const override;
  void keep_projections(const DecoderPass& pass, LayerActivations& a) const override;
  void keep_all(const DecoderPass& pass, LayerActivations& a) const override;
  void forward(const DecoderPass& pass, const LayerActivations& a, const ResidualStream& residual, Tensor out,
               KvCache* cache, std::int64_t tile, bool mixed) const override;
  void backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations a, Tensor dnormed, Tensor dresidual,
                std::int64_t tile, Tensor room) const override;

 private:
  // All heads of a batch that is whole, as far as `a` has what they work with.
  StateSpacePart part_of(const DecoderPass& pass, const LayerActivations& a) const;
  void complete_inputs(const DecoderPass& pass, LayerActivations& a) const;
  // Computes what the state space reads, and a.mixed unless it is there.
  void mix(const DecoderPass& pass, const LayerActivations& a, KvCache* cache, bool mixed) const;
  HeadNorm output_norm(const DecoderPass& pass, const LayerActivations& a) const;
  // The groups of the output, which are normed each by itself; and their gate, in all projections of a token or in
  // their gradient, where it comes first.
  Heads groups_in(Tensor rows) const { return {rows, 0, space_.groups, space_.width() / space_.groups}; }

  // dmixed is the gradient of the gated output, and becomes that of a.mixed; the gates' goes to dprojected, all of the
  // tokens of `a`. Returns the gated output, which is made again if it is not there.
  Tensor gate_backward(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a, Tensor dmixed,
                       Tensor dprojected) const;
  void mix_backward(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a, Tensor dmixed,
                    Tensor dprojected) const;

  const DecoderContext& context_;
  const DecoderSpec& spec_;
  const StateSpaceSpec& space_;
  Ops& ops_;
  const std::int64_t layer_;
  const ParameterIndex::Layer& p_;
  const Projection qkv_;
  const SliceStateSpace sliced_;
};

}  // namespace so
