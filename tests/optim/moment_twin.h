// The 8-bit moments of optim/moment_blocks.h written out a second time: codes by their values, in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "optim/adamw.h"
#include "optim/adamw_twin.h"

namespace so {

// Of the scale: `fraction` bits of fraction in codes of `bits`.
inline double twin_value(int fraction, int bits, unsigned code) {
  const int least_exponent = 2 - (1 << (bits - fraction)), exponent = static_cast<int>(code >> fraction);
  const double steps = code % (1u << fraction);
  if (exponent == 0) return std::ldexp(steps, least_exponent - fraction);
  return std::ldexp(steps + (1 << fraction), least_exponent + exponent - 1 - fraction);
}

// The code of a share of the scale, rounded up if the part that is cut off and the dither, as parts of one, reach one.
inline unsigned twin_code(int fraction, int bits, double share, std::uint32_t hash) {
  const unsigned last = (1u << bits) - 1;
  if (!(share < 2)) return last;
  unsigned code = 0;
  while (code < last && twin_value(fraction, bits, code + 1) <= share) ++code;
  const double value = twin_value(fraction, bits, code), next = code < last ? twin_value(fraction, bits, code + 1) : 2;
  const int shift = 23 - fraction;
  const double cut = std::nearbyint(std::ldexp((share - value) / (next - value), shift));
  return std::min(last, code + (cut + (hash >> (32 - shift)) >= std::ldexp(1, shift) ? 1 : 0));
}

// Moments of consecutive blocks, the last perhaps short.
struct TwinMoments {
  std::vector<std::uint8_t> m, v;
  std::vector<float> m_scales, v_scales;

  TwinMoments() = default;
  // All zeros.
  explicit TwinMoments(std::size_t count)
      : m(count),
        v(count),
        m_scales(static_cast<std::size_t>(moment_blocks(static_cast<std::int64_t>(count)))),
        v_scales(m_scales.size()) {}

  AdamWState state(float* master) { return {master, {m.data(), m_scales.data()}, {v.data(), v_scales.data()}}; }
  float first(std::size_t i) const {
    const double value = scaled(twin_value(4, 7, m[i] & 0x7fu), m_scales[i / moment_block]);
    return static_cast<float>(m[i] & 0x80u ? -value : value);
  }
  float second(std::size_t i) const {
    return static_cast<float>(scaled(twin_value(3, 8, v[i]), v_scales[i / moment_block]));
  }
  bool operator==(const TwinMoments&) const = default;

 private:
  static double scaled(double share, float scale) {
    return std::isinf(scale) ? static_cast<double>(scale) : share * static_cast<double>(scale);
  }
};

// 2^exponent of the largest, as what is kept says.
inline float twin_scale(std::span<const float> moments) {
  float largest = 0;
  for (const float x : moments) {
    if (!std::isfinite(x)) return INFINITY;
    largest = std::max(largest, std::abs(x));
  }
  if (largest < std::ldexp(1.0f, -90)) return 0;
  return std::ldexp(1.0f, std::min(126, std::ilogb(largest)));
}

inline TwinMoments twin_moments(const std::vector<float>& m, const std::vector<float>& v, std::uint32_t step) {
  TwinMoments all(m.size());
  for (std::size_t begin = 0; begin < m.size(); begin += moment_block) {
    const std::size_t count = std::min<std::size_t>(moment_block, m.size() - begin);
    const float m_scale = all.m_scales[begin / moment_block] = twin_scale(std::span(m).subspan(begin, count)),
                v_scale = all.v_scales[begin / moment_block] = twin_scale(std::span(v).subspan(begin, count));
    const auto share = [](float x, float scale) {
      if (std::isnan(x)) return 2.0;
      return scale > 0 && std::isfinite(scale) ? static_cast<double>(std::abs(x)) / static_cast<double>(scale) : 0.0;
    };
    for (std::size_t i = begin; i < begin + count; ++i) {
      const auto m_bits = std::bit_cast<std::uint32_t>(m[i]), v_bits = std::bit_cast<std::uint32_t>(v[i]);
      const std::uint32_t hash = (m_bits ^ v_bits << 11 ^ step) * 2654435761u;
      all.m[i] =
          static_cast<std::uint8_t>(twin_code(4, 7, share(m[i], m_scale), hash) | (std::signbit(m[i]) ? 0x80 : 0));
      all.v[i] = static_cast<std::uint8_t>(twin_code(3, 8, share(v[i], v_scale), hash));
      if (all.v[i] == 0 && v[i] > 0 && v_scale > 0) all.v[i] = 1;
    }
  }
  return all;
}

}  // namespace so
