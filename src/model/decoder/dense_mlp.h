// Internal to the decoder: an MLP, down(act(gate(x)) * up(x)), or without a gate down(act(up(x))).
#pragma once

#include "model/decoder/context.h"
#include "model/decoder/feed_forward.h"
#include "model/decoder/projection.h"

namespace so {

class DenseMlp final : public FeedForward {
 public:
  struct Weights {
    Joined gate_up, gate_up_bias, down, down_bias;
  };
  // The MLP of a layer that has no experts.
  DenseMlp(const DecoderContext& context, std::int64_t layer);
  DenseMlp(const DecoderContext& context, std::int64_t layer, const Weights& weights, std::int64_t intermediate);

  std::string_view name_of_output() const override { return "the output of its MLP"; }
  void complete_routing(Arena&, std::int64_t, LayerActivations&) const override {}
  void complete_gate_up(Arena& arena, std::int64_t n, LayerActivations& a) const override;
  bool keeps_activated() const override { return !down_.in_fp8(); }
  bool reads_codes() const override { return gate_up_.in_fp8(); }
  bool works_in_tiles(const LayerActivations& kept) const override { return !kept.gate_up; }
  std::vector<Joined> parameters() const override {
    return {down_.weight(), down_.bias(), gate_up_.weight(), gate_up_.bias()};
  }
  void complete(Arena& arena, std::int64_t n, LayerActivations& a) const override;
  void forward(const DecoderPass& pass, const LayerActivations& a, Tensor out, bool first_rows) const override;
  void backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations& a, Tensor dnormed, Tensor dout,
                Tensor dresidual) const override;

 private:
  const DecoderContext& context_;
  Ops& ops_;
  const Projection gate_up_, down_;
  const std::int64_t intermediate_;
};

}  // namespace so
