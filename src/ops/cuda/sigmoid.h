// The sigmoid of activations and the softplus of gates, in kernels. Included by .cu files only.
#pragma once

#include "device/cuda/kernel.h"

namespace so::kernel {

// {sigmoid(x), 1 - sigmoid(x)}. For fp32 both to a few units in the last place, through e = exp(-|x|) <= 1, which
// cannot overflow. For bf16 in as few instructions as possible, as these kernels are near the limit of what is computed
// in the time of a memory access: both within 2^-21 of 1, and sigmoid(x) also relatively, so that the roundings to bf16
// rule.
template <class T>
__device__ inline void sigmoid(float x, float& value, float& complement) {
  if constexpr (sizeof(T) == 4) {
    const float e = expf(-fabsf(x));
    const float large = 1.0f / (1.0f + e), small = e * large;
    value = x < 0 ? small : large;
    complement = x < 0 ? large : small;
  } else {
    value = __fdividef(1.0f, 1.0f + __expf(-x));  // 0 where exp overflows or its result passes 2^126
    complement = 1.0f - value;
  }
}

// log(1 + exp(x)), which overflows for no x. A NaN stays one.
__device__ inline float softplus(float x) { return log1pf(expf(-fabsf(x))) + (x > 0 ? x : 0.0f); }

}  // namespace so::kernel
