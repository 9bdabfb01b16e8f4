// The sigmoid and the softplus of single numbers, for ops with few of them; sigmoid-inl.h has the sigmoid in SIMD.
#pragma once

#include <cmath>

namespace so {

// {sigmoid(x), 1 - sigmoid(x)}, both to a few units in the last place, through exp(-|x|), which cannot overflow.
struct Sigmoid {
  explicit Sigmoid(float x) {
    const float e = std::exp(-std::abs(x)), large = 1.0f / (1.0f + e), small = e * large;
    value = x < 0 ? small : large;
    complement = x < 0 ? large : small;
  }
  float value, complement;
};

// log(1 + exp(x)), which overflows for no x.
inline float softplus(float x) { return std::log1p(std::exp(-std::abs(x))) + (x > 0 ? x : 0.0f); }

}  // namespace so
