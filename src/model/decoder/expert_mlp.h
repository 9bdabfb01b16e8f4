// Internal to the decoder: a mixture of experts. A pair's weight goes onto the activation between the two products: y =
// w (W a + b) is W (w a) + w b, so that what comes out of the experts need only be added up, and the weight's gradient
// <dy, W a + b> is <W^T dy, a> + <dy, b>, for which that output need not be there.
#pragma once

#include <optional>

#include "model/decoder/context.h"
#include "model/decoder/feed_forward.h"
#include "model/decoder/shared_expert.h"

namespace so {

// Where a.router_input is there, the router reads it in place of a.normed2, and backward() makes it its own gradient.
class ExpertMlp final : public FeedForward {
 public:
  ExpertMlp(const DecoderContext& context, std::int64_t layer);

  std::string_view name_of_output() const override { return "the output of its experts"; }
  void complete_routing(Arena& arena, std::int64_t n, LayerActivations& a) const override;
  void complete_gate_up(Arena& arena, std::int64_t n, LayerActivations& a) const override;
  bool keeps_activated() const override { return false; }
  bool reads_codes() const override { return false; }
  bool works_in_tiles(const LayerActivations& kept) const override { return !kept.gate_up && !kept.router_logits; }
  std::vector<Joined> parameters() const override;
  void complete(Arena& arena, std::int64_t n, LayerActivations& a) const override;
  void forward(const DecoderPass& pass, const LayerActivations& a, Tensor out, bool first_rows) const override;
  void backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations& a, Tensor dnormed, Tensor dout,
                Tensor dresidual) const override;

 private:
  // a.router_input, or a.normed2 where it is empty.
  Tensor router_input(const LayerActivations& a) const { return a.router_input ? a.router_input : a.normed2.values; }
  RouterRule rule() const;
  void route(const DecoderPass& pass, const LayerActivations& a) const;
  // The routing with what rows count in the end.
  Routing scaled(const LayerActivations& a) const;
  // The weight of all experts, [E, in, out] or [E, out, in].
  Tensor by_expert(Tensor weight, std::int64_t in, std::int64_t out) const;

  const DecoderContext& context_;
  const ExpertSpec& experts_;
  Ops& ops_;
  const ParameterIndex::Layer& p_;
  const std::int64_t layer_;
  const std::int64_t inputs_;  // columns of an expert's first product
  const bool lowest_;          // of the layers with experts
  std::optional<SharedExpert> shared_;
};

}  // namespace so
