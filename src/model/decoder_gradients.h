// Internal to the decoder: gradients of a matrix and its bias.
#pragma once

#include "model/parameters.h"
#include "offload/memory/parameter_source.h"
#include "ops/ops.h"

namespace so {

// Enqueues the gradients from dy, where y = x w^T + bias; without a bias that of the matrix alone.
inline void grad_linear(Ops& ops, Stream& stream, GradientSink& gradients, Joined weight, Joined bias, Tensor dy,
                        Tensor x) {
  const auto dw = gradients.gradient(weight.first, weight.count);
  ops.linear_grad_weight(stream, dw.tensor, dy, x, dw.mode);
  if (!bias) return;
  const auto db = gradients.gradient(bias.first, bias.count);
  ops.linear_grad_bias(stream, db.tensor, dy, db.mode);
}

}  // namespace so
