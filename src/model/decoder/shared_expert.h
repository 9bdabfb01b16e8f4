// Internal to the decoder: the expert that every token goes to beside those that its router chooses, an MLP as layers
// without experts have it. The gate of its output, if it has one, goes onto the activation between the two products, as
// the weights of the others do (expert_mlp.h).
#pragma once

#include <vector>

#include "model/decoder/context.h"
#include "model/decoder/layer_activations.h"
#include "model/decoder/pass.h"
#include "offload/memory/parameter_source.h"

namespace so {

class SharedExpert {
 public:
  SharedExpert(const DecoderContext& context, std::int64_t layer);

  // Those that the backward pass asks the sink for.
  std::vector<Joined> parameters() const { return {p_.shared_down, p_.shared_gate_up, p_.shared_output_gate}; }
  // Each acquires a part of what forward() works with, as far as it is empty, for n tokens: what a layer may keep, and
  // all.
  void complete_gate_up(Arena& arena, std::int64_t n, LayerActivations& a) const;
  void complete(Arena& arena, std::int64_t n, LayerActivations& a) const;

  // Adds to `out`, T [n, H].
  void forward(const DecoderPass& pass, const LayerActivations& a, Tensor out) const;

  // The gradient of a.normed2, in two parts, since the memory of `dout` may be that of `dnormed`. The first computes
  // a.shared_gate_up's in its place, and the gates', which is returned (empty without a gate); the second adds to
  // dnormed. What is empty of a.shared_gate_up and the gates is computed again.
  Tensor backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations& a, Tensor dout) const;
  void backward_to_input(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a, Tensor dgates,
                         Tensor dnormed) const;

 private:
  void project(const DecoderPass& pass, const LayerActivations& a) const;

  const DecoderContext& context_;
  const std::int64_t width_;
  const MlpActivation activation_;
  const bool gated_;
  Ops& ops_;
  const ParameterIndex::Layer& p_;
};

}  // namespace so
