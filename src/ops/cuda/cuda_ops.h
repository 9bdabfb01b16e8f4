// The CUDA backend. One file per subject implements the members. Everything is enqueued on the one stream that an
// instance is used with: the scratch that reductions and matrix products share is free again when the next op starts.
#pragma once

#include <memory>

#include "device/cuda/cuda_device.h"
#include "ops/ops.h"

namespace so {

class CudaGemm;       // gemm.h
class CudaAttention;  // attention.h

class CudaOps final : public Ops {
 public:
  explicit CudaOps(Device& device);
  ~CudaOps() override;

  void embedding(Stream&, Tensor out, Tensor table, Tensor ids) override;
  void embedding_grad(Stream&, Tensor dtable, Tensor dout, Tensor ids, Accumulate) override;
  void linear(Stream&, Tensor out, Tensor x, Tensor w, Tensor bias, Accumulate) override;
  void linear_grad_input(Stream&, Tensor dx, Tensor dy, Tensor w, Accumulate) override;
  void linear_grad_weight(Stream&, Tensor dw, Tensor dy, Tensor x, Accumulate) override;
  void linear_grad_bias(Stream&, Tensor dbias, Tensor dy, Accumulate) override;
  bool multiplies_fp8() const override;
  void fp8_quantise(Stream&, Fp8Matrix rows, Fp8Matrix columns, Tensor x) override;
  void fp8_quantise_norm(Stream&, Fp8Matrix columns, Tensor x, Tensor inv_rms, Tensor weight,
                         float weight_offset) override;
  void fp8_product(Stream&, Tensor out, Fp8Matrix a, Fp8Matrix b, Tensor bias, Accumulate) override;
  void add_rms_norm(Stream&, Tensor out, Tensor sum, Tensor inv_rms, Tensor x, Tensor delta, Tensor weight,
                    NormTerms terms, Fp8Matrix rows) override;
  void rms_norm_grad(Stream&, const RmsNormGrad&) override;
  void projection_norm(Stream&, Heads out, Heads in, HeadNorm norm) override;
  void projection_norm_grad(Stream&, const ProjectionNormGrad&) override;
  void add_gradient(Stream&, Tensor dw, Tensor sum, Accumulate) override;
  void add_scaled(Stream&, Tensor out, Tensor x, Tensor delta, float scale) override;
  void scale_sum(Stream&, Tensor out, Tensor x, Tensor delta, Tensor factor) override;
  void rotary(Stream&, Heads out, Heads in, Tensor positions, Tensor table, HeadNorm norm, RotaryPairs pairs) override;
  void rotary_grad(Stream&, const RotaryGrad&) override;
  void head_norm(Stream&, Heads out, Heads in, Tensor inv_rms, float epsilon) override;
  void head_norm_grad(Stream&, const HeadNormGrad&) override;
  void copy_heads(Stream&, Heads out, Heads in) override;
  void spread_head(Stream&, Heads out, Heads in) override;
  void sum_heads(Stream&, Heads out, Heads in) override;
  void attention(Stream&, const Attention&) override;
  void attention_grad(Stream&, const AttentionGrad&) override;
  void swiglu(Stream&, Tensor out, Tensor gate_up, MlpActivation activation, Fp8Matrix codes) override;
  void swiglu_grad(Stream&, Tensor dgate_up, Tensor dout, Tensor gate_up, Tensor activated,
                   MlpActivation activation) override;
  void fp8_swiglu_grad(Stream&, const Fp8SwigluGrad&) override;
  void sigmoid_gate(Stream&, Heads out, Heads x, Heads gate) override;
  void sigmoid_gate_grad(Stream&, const SigmoidGateGrad&) override;
  void gated_norm(Stream&, Heads out, Heads x, Heads gate, HeadNorm norm) override;
  void gated_norm_grad(Stream&, const GatedNormGrad&) override;
  void gate_then_norm(Stream&, Heads out, Heads x, Heads gate, HeadNorm norm) override;
  void gate_then_norm_grad(Stream&, const GateThenNormGrad&) override;
  void causal_conv(Stream&, const CausalConv&) override;
  void causal_conv_grad(Stream&, const CausalConvGrad&) override;
  void delta_gates(Stream&, const DeltaGates&) override;
  void delta_gates_grad(Stream&, const DeltaGatesGrad&) override;
  void delta_rule(Stream&, const DeltaRule&) override;
  void delta_rule_grad(Stream&, const DeltaRuleGrad&) override;
  void step_gates(Stream&, const StepGates&) override;
  void step_gates_grad(Stream&, const StepGatesGrad&) override;
  void state_space(Stream&, const StateSpace&) override;
  void state_space_grad(Stream&, const StateSpaceGrad&) override;
  void route(Stream&, const Routing& out, Tensor logits, const RouterRule&) override;
  void route_grad(Stream&, Tensor dlogits, Tensor dweights, const Routing&, Tensor logits, const RouterRule&,
                  Tensor counts, float balance_scale) override;
  void router_load(Stream&, Tensor counts, Tensor shares, const Routing&, Tensor logits, Accumulate) override;
  void add_router_loss(Stream&, Tensor losses, Tensor targets, Tensor counts, Tensor shares, float scale) override;
  void gather_rows(Stream&, Tensor out, Tensor x, const Routing&) override;
  void sum_rows(Stream&, Tensor out, Tensor y, Tensor bias, const Routing&) override;
  void expert_linear(Stream&, Tensor out, Tensor x, Tensor w, ExpertLayout, Tensor offsets) override;
  void expert_linear_grad_input(Stream&, Tensor dx, Tensor dy, Tensor w, ExpertLayout, Tensor offsets) override;
  void expert_linear_grad_weight(Stream&, Tensor dw, Tensor dy, Tensor x, ExpertLayout, Tensor offsets,
                                 Accumulate) override;
  void expert_bias_grad(Stream&, Tensor dbias, Tensor dy, const Routing&, bool weighted, Accumulate) override;
  void expert_bias_dot(Stream&, Tensor dweights, Tensor dout, Tensor bias, const Routing&) override;
  void scale_experts(Stream&, Tensor out, Tensor scale, const Routing&) override;
  void scale_experts_grad(Stream&, const ScaleExpertsGrad&) override;
  void expert_activation(Stream&, Tensor out, Tensor gate_up, Tensor bias, const ExpertActivation&,
                         const Routing&) override;
  void expert_activation_grad(Stream&, const ExpertActivationGrad&) override;
  void row_gate(Stream&, Tensor gates, Tensor x, Tensor weight) override;
  void row_gate_grad(Stream&, const RowGateGrad&) override;
  void soft_cap(Stream&, Tensor logits, float cap) override;
  void linear_cross_entropy(Stream&, const LinearCrossEntropy&) override;
  void random_normal(Stream&, Tensor out, std::uint64_t seed, float standard_deviation) override;

 private:
  // The stream as CUDA's. Bug if it is another device's, or another stream than the first call's.
  cudaStream_t enter(Stream& stream);
  // `bytes` of the shared scratch, for the op being enqueued. Bug if the scratch is smaller.
  template <class T>
  T* scratch(std::size_t count) const {
    return static_cast<T*>(scratch_bytes(count * sizeof(T)));
  }
  void* scratch_bytes(std::size_t bytes) const;
  // out [R, columns] = a [R, inner] times the expert's matrix of w, [columns, inner] if transposed.
  void expert_rows(Stream& stream, Tensor out, Tensor a, Tensor w, bool transposed, Tensor offsets);

  const CudaProperties properties_;
  Buffer scratch_;
  std::unique_ptr<CudaGemm> gemm_;
  std::unique_ptr<CudaAttention> attention_;
  Stream* stream_ = nullptr;
  std::string stream_name_;
};

}  // namespace so
