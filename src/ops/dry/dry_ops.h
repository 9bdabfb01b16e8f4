// Ops that do nothing: for a dry run, whose tensors have no memory behind them.
#pragma once

#include "ops/ops.h"

namespace so {

class DryOps final : public Ops {
 public:
  // Books on the dry device what the backend that needs this memory would hold.
  DryOps(Device& device, const OpsMemory& memory) : Ops(memory) {
    if (memory.held() > 0) scratch_ = device.allocate(MemoryKind::device, memory.held(), "ops scratch");
  }

  void embedding(Stream&, Tensor, Tensor, Tensor) override {}
  void embedding_grad(Stream&, Tensor, Tensor, Tensor, Accumulate) override {}
  void linear(Stream&, Tensor, Tensor, Tensor, Tensor, Accumulate) override {}
  void linear_grad_input(Stream&, Tensor, Tensor, Tensor, Accumulate) override {}
  void linear_grad_weight(Stream&, Tensor, Tensor, Tensor, Accumulate) override {}
  void linear_grad_bias(Stream&, Tensor, Tensor, Accumulate) override {}
  void fp8_quantise(Stream&, Fp8Matrix, Fp8Matrix, Tensor) override {}
  void fp8_product(Stream&, Tensor, Fp8Matrix, Fp8Matrix, Tensor, Accumulate) override {}
  void fp8_quantise_norm(Stream&, Fp8Matrix, Tensor, Tensor, Tensor, float) override {}
  void add_rms_norm(Stream&, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, NormTerms, Fp8Matrix) override {}
  void rms_norm_grad(Stream&, const RmsNormGrad&) override {}
  void projection_norm(Stream&, Heads, Heads, HeadNorm) override {}
  void projection_norm_grad(Stream&, const ProjectionNormGrad&) override {}
  void add_gradient(Stream&, Tensor, Tensor, Accumulate) override {}
  void add_scaled(Stream&, Tensor, Tensor, Tensor, float) override {}
  void scale_sum(Stream&, Tensor, Tensor, Tensor, Tensor) override {}
  void rotary(Stream&, Heads, Heads, Tensor, Tensor, HeadNorm, RotaryPairs) override {}
  void rotary_grad(Stream&, const RotaryGrad&) override {}
  void head_norm(Stream&, Heads, Heads, Tensor, float) override {}
  void head_norm_grad(Stream&, const HeadNormGrad&) override {}
  void copy_heads(Stream&, Heads, Heads) override {}
  void spread_head(Stream&, Heads, Heads) override {}
  void sum_heads(Stream&, Heads, Heads) override {}
  void attention(Stream&, const Attention&) override {}
  void attention_grad(Stream&, const AttentionGrad&) override {}
  void swiglu(Stream&, Tensor, Tensor, MlpActivation, Fp8Matrix) override {}
  void swiglu_grad(Stream&, Tensor, Tensor, Tensor, Tensor, MlpActivation) override {}
  void fp8_swiglu_grad(Stream&, const Fp8SwigluGrad&) override {}
  void sigmoid_gate(Stream&, Heads, Heads, Heads) override {}
  void sigmoid_gate_grad(Stream&, const SigmoidGateGrad&) override {}
  void gated_norm(Stream&, Heads, Heads, Heads, HeadNorm) override {}
  void gated_norm_grad(Stream&, const GatedNormGrad&) override {}
  void gate_then_norm(Stream&, Heads, Heads, Heads, HeadNorm) override {}
  void gate_then_norm_grad(Stream&, const GateThenNormGrad&) override {}
  void causal_conv(Stream&, const CausalConv&) override {}
  void causal_conv_grad(Stream&, const CausalConvGrad&) override {}
  void delta_gates(Stream&, const DeltaGates&) override {}
  void delta_gates_grad(Stream&, const DeltaGatesGrad&) override {}
  void delta_rule(Stream&, const DeltaRule&) override {}
  void delta_rule_grad(Stream&, const DeltaRuleGrad&) override {}
  void step_gates(Stream&, const StepGates&) override {}
  void step_gates_grad(Stream&, const StepGatesGrad&) override {}
  void state_space(Stream&, const StateSpace&) override {}
  void state_space_grad(Stream&, const StateSpaceGrad&) override {}
  void route(Stream&, const Routing&, Tensor, const RouterRule&) override {}
  void route_grad(Stream&, Tensor, Tensor, const Routing&, Tensor, const RouterRule&, Tensor, float) override {}
  void router_load(Stream&, Tensor, Tensor, const Routing&, Tensor, Accumulate) override {}
  void add_router_loss(Stream&, Tensor, Tensor, Tensor, Tensor, float) override {}
  void gather_rows(Stream&, Tensor, Tensor, const Routing&) override {}
  void sum_rows(Stream&, Tensor, Tensor, Tensor, const Routing&) override {}
  void expert_linear(Stream&, Tensor, Tensor, Tensor, ExpertLayout, Tensor) override {}
  void expert_linear_grad_input(Stream&, Tensor, Tensor, Tensor, ExpertLayout, Tensor) override {}
  void expert_linear_grad_weight(Stream&, Tensor, Tensor, Tensor, ExpertLayout, Tensor, Accumulate) override {}
  void expert_bias_grad(Stream&, Tensor, Tensor, const Routing&, bool, Accumulate) override {}
  void expert_bias_dot(Stream&, Tensor, Tensor, Tensor, const Routing&) override {}
  void scale_experts(Stream&, Tensor, Tensor, const Routing&) override {}
  void scale_experts_grad(Stream&, const ScaleExpertsGrad&) override {}
  void expert_activation(Stream&, Tensor, Tensor, Tensor, const ExpertActivation&, const Routing&) override {}
  void expert_activation_grad(Stream&, const ExpertActivationGrad&) override {}
  void row_gate(Stream&, Tensor, Tensor, Tensor) override {}
  void row_gate_grad(Stream&, const RowGateGrad&) override {}
  void linear_cross_entropy(Stream&, const LinearCrossEntropy&) override {}
  void soft_cap(Stream&, Tensor, float) override {}
  void random_normal(Stream&, Tensor, std::uint64_t, float) override {}

 private:
  Buffer scratch_;
};

}  // namespace so
