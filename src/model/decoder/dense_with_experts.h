// Internal to the decoder: an MLP and experts in one layer, each with a norm of its own behind it, whose sum is what
// the block adds [Gemma 4, Google 2026]. The MLP reads the block's norm; experts have a norm of their own before them,
// and their router another, so that both read the residual stream itself.
#pragma once

#include <vector>

#include "model/decoder/context.h"
#include "model/decoder/dense_mlp.h"
#include "model/decoder/expert_mlp.h"
#include "model/decoder/feed_forward.h"

namespace so {

class DenseWithExperts final : public FeedForward {
 public:
  DenseWithExperts(const DecoderContext& context, std::int64_t layer);

  std::string_view name_of_output() const override { return "the output of its MLP and experts"; }
  std::vector<Joined> parameters() const override;
  void complete_routing(Arena& arena, std::int64_t n, LayerActivations& a) const override;
  void complete_gate_up(Arena& arena, std::int64_t n, LayerActivations& a) const override;
  void complete_outputs(Arena& arena, std::int64_t n, LayerActivations& a) const override;
  void complete(Arena& arena, std::int64_t n, LayerActivations& a) const override;
  bool keeps_activated() const override { return false; }
  bool reads_codes() const override { return dense_.reads_codes(); }
  bool works_in_tiles(const LayerActivations& kept) const override { return experts_.works_in_tiles(kept); }
  void forward(const DecoderPass& pass, const LayerActivations& a, Tensor out, bool first_rows) const override;
  void backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations& a, Tensor dnormed, Tensor dout,
                Tensor dresidual) const override;

 private:
  // `a` as the experts see it: with the norms that they and their router read, which are made in memory of the arena.
  LayerActivations of_experts(const DecoderPass& pass, const LayerActivations& a) const;

  const DecoderContext& context_;
  const ParameterIndex::Layer& p_;
  const DenseMlp dense_;
  const ExpertMlp experts_;
};

}  // namespace so
