// Argument checks of the gates and the gated delta rule, shared by the backends: Bug with the op, the argument and both
// shapes. What lies in device memory, as the documents' starts, is looked at when the op runs.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace so {

// The most rows that a convolution sees: a GPU keeps them in registers.
inline constexpr std::int64_t kMaxTaps = 8;

struct ConvSize {
  std::int64_t rows, channels, taps;  // N, C, K
};

void expect_sigmoid_gate(const char* op, const Heads& out, const Heads& x, const Heads& gate);
void expect_sigmoid_gate_grad(const char* op, const Ops::SigmoidGateGrad& g);
void expect_gated_norm(const char* op, const Heads& out, const Heads& x, const Heads& gate, const HeadNorm& norm);
void expect_gated_norm_grad(const char* op, const Ops::GatedNormGrad& g);
void expect_gate_then_norm(const char* op, const Heads& out, const Heads& x, const Heads& gate, const HeadNorm& norm);
void expect_gate_then_norm_grad(const char* op, const Ops::GateThenNormGrad& g);
ConvSize expect_causal_conv(const char* op, const Ops::CausalConv& c);
ConvSize expect_causal_conv_grad(const char* op, const Ops::CausalConvGrad& g);
void expect_delta_gates(const char* op, const Ops::DeltaGates& g);
void expect_delta_gates_grad(const char* op, const Ops::DeltaGatesGrad& g);
DeltaSize expect_delta_rule(const char* op, const Ops::DeltaRule& a);
DeltaSize expect_delta_rule_grad(const char* op, const Ops::DeltaRuleGrad& g);

}  // namespace so
