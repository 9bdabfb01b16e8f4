// Ops that do nothing: for a dry run, whose tensors have no memory behind them.
#pragma once

#include "ops/ops.h"

namespace so {

class NullOps final : public Ops {
 public:
  void embedding(Stream&, Tensor, Tensor, Tensor) override {}
  void embedding_grad(Stream&, Tensor, Tensor, Tensor, Accumulate) override {}
  void linear(Stream&, Tensor, Tensor, Tensor, Tensor, Accumulate) override {}
  void linear_grad_input(Stream&, Tensor, Tensor, Tensor, Accumulate) override {}
  void linear_grad_weight(Stream&, Tensor, Tensor, Tensor, Accumulate) override {}
  void linear_grad_bias(Stream&, Tensor, Tensor, Accumulate) override {}
  void add_rms_norm(Stream&, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float) override {}
  void rms_norm_grad(Stream&, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Accumulate) override {}
  void rotary(Stream&, Heads, Heads, Tensor, Tensor, HeadNorm) override {}
  void rotary_grad(Stream&, Heads, Heads, Heads, Tensor, Tensor, HeadNorm, Tensor, Accumulate) override {}
  void copy_heads(Stream&, Heads, Heads) override {}
  void attention(Stream&, Heads, Tensor, Heads, Heads, Heads, const AttentionSpans&) override {}
  void attention_grad(Stream&, Heads, Heads, Heads, Heads, Heads, Tensor, Heads, Heads, Heads,
                      const AttentionSpans&) override {}
  void swiglu(Stream&, Tensor, Tensor) override {}
  void swiglu_grad(Stream&, Tensor, Tensor, Tensor) override {}
  void linear_cross_entropy(Stream&, const LinearCrossEntropy&) override {}
  void grad_stats(Stream&, GradStats*, Tensor) override {}
  void cast(Stream&, Tensor, Tensor) override {}
};

}  // namespace so
