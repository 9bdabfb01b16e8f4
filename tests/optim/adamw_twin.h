// The contract of optim/adamw.h written out a second time, an element at a time, and what tests of it share.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "optim/adamw.h"

namespace so {

struct TwinElement {
  float p, m, v;
};

inline TwinElement adamw_twin(const AdamWStep& s, bool decay, float gradient, TwinElement old) {
  const float g = s.grad_scale * gradient;
  const float difference = g - old.m;
  const float m = std::fma(s.one_minus_beta1, difference, old.m);
  const float weighted = s.one_minus_beta2 * g;
  const float kept = s.beta2 * old.v;
  const float v = std::fma(weighted, g, kept);
  const float root = std::sqrt(v);
  const float denom = std::fma(root, s.inv_sqrt_bias2, s.epsilon);
  const float q = m / denom;
  const float decayed = (decay ? s.decay : 0.0f) * old.p;
  const float u = std::fma(s.step_size, q, decayed);
  return {old.p - u, m, v};
}

// Equal bits, or both NaN: a NaN's sign and payload are outside the contract.
inline bool same_bits(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}
inline bool same_bits(bf16 a, bf16 b) { return same_bits(static_cast<float>(a), static_cast<float>(b)); }

// The first difference, as a gtest message; success if there is none.
template <class T>
testing::AssertionResult same_bits(const std::vector<T>& got, const std::vector<T>& expected) {
  if (got.size() != expected.size()) return testing::AssertionFailure() << got.size() << " vs " << expected.size();
  if (got.empty() || std::memcmp(got.data(), expected.data(), got.size() * sizeof(T)) == 0)
    return testing::AssertionSuccess();
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!same_bits(got[i], expected[i]))
      return testing::AssertionFailure() << "element " << i << " is " << static_cast<float>(got[i]) << ", expected "
                                         << static_cast<float>(expected[i]);
  return testing::AssertionSuccess();
}

// Puts the global choices back however a test ends.
struct AdamWChoiceGuard {
  ~AdamWChoiceGuard() {
    adamw_use_instruction_set("");
    adamw_use_stores(AdamWStores::automatic);
  }
};

}  // namespace so
