// The activations of an MLP and their gradients, element by element, in kernels. Included by .cu files only.
#pragma once

#include "ops/cuda/sigmoid.h"
#include "ops/operands.h"

namespace so::kernel {

// Both activations of a gate are x sigmoid(z): z is x for SiLU, and 2 sqrt(2/pi) (x + 0.044715 x^3) for GELU by tanh,
// since (1 + tanh(u)) / 2 = sigmoid(2u). Here are z and dz/dx.
inline constexpr float gelu_linear = 1.5957691216057308f, gelu_cubic = gelu_linear * 0.044715f;

template <MlpActivation ACT>
__device__ inline float logit(float x) {
  return ACT == MlpActivation::silu ? x : x * (x * x * gelu_cubic + gelu_linear);
}
template <MlpActivation ACT>
__device__ inline float logit_slope(float x) {
  return ACT == MlpActivation::silu ? 1.0f : x * x * (3 * gelu_cubic) + gelu_linear;
}

// T: the format of the data that gate and up are of.
template <class T, MlpActivation ACT>
__device__ inline float gated(float gate, float up) {
  float s, complement;
  sigmoid<T>(logit<ACT>(gate), s, complement);
  return up * (gate * s);
}

// gate and up become their gradients, and dy the forward result again.
// act'(g) = s + g s (1 - s) z', s = sigmoid(z). Where s or 1 - s is 0, z' may be too large for fp32: the product is 0
// then.
template <class T, MlpActivation ACT>
__device__ inline void gated_grad(float& gate, float& up, float& dy) {
  float s, complement;
  sigmoid<T>(logit<ACT>(gate), s, complement);
  const float active = gate * s, again = active * up;
  if constexpr (ACT != MlpActivation::silu)
    complement = s * complement == 0 ? 0.0f : complement * logit_slope<ACT>(gate);
  gate = dy * up * (s + active * complement);
  up = dy * active;
  dy = again;
}

// NaN stays NaN, since no comparison with it is true.
__device__ inline float relu(float x) { return x < 0 ? 0.0f : x; }

__device__ inline float relu_squared(float x) { return relu(x) * relu(x); }

// x becomes its gradient, and dy the forward result again.
__device__ inline void relu_squared_grad(float& x, float& dy) {
  const float positive = relu(x);
  x = dy * (positive + positive);
  dy = positive * positive;
}

// Calls f.operator()<ACT>().
template <class F>
void with_activation(MlpActivation activation, F&& f) {
  switch (activation) {
    case MlpActivation::silu:
      return f.template operator()<MlpActivation::silu>();
    case MlpActivation::gelu_tanh:
      return f.template operator()<MlpActivation::gelu_tanh>();
    case MlpActivation::relu_squared:
      return f.template operator()<MlpActivation::relu_squared>();
  }
}

}  // namespace so::kernel
