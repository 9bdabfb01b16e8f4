// AdamW's moments in 8 bits: blocks of 256 elements, each with an fp32 scale, a power of two. A code is a small
// floating point number, so that what it rounds is in proportion to the element, not to the block's largest:
//
//   first moment    sign, 3 bits of exponent, 4 of fraction
//   second moment   5 bits of exponent, 3 of fraction
//
// The largest exponent stands for [1, 2) of the scale, an exponent of 0 for subnormal numbers, and a code's value is
// exact in fp32, as is its product with the scale. So codes that are decoded and encoded again are the same codes with
// the same scale: fp32 carries them without loss, in a checkpoint too.
//
// Rounding is dithered: the part of a code that would be cut off is rounded up as often as it is large. Rounding to the
// nearest would swallow a step's share of a moment, which is 1 - beta of it: second moments would rise and never fall
// (docs/performance/state.md). The dither is a hash of the element's two moments before they are rounded and of the
// step's number, so it is the same on every processor, for any cut into threads, buckets and ranks, and in a step that
// is computed again.
//
// A second moment above 0 is never rounded to 0, but up to the smallest code: a step may be too short, not too long. A
// block whose largest is below 2^-90 is kept as zeros, which epsilon covers: its root is below 3e-14. One with a number
// that is not finite decodes to infinities.
//
// Blocks count from a parameter's first element, so its last one may be short. What follows is the scalar form; SIMD
// (cpu/adamw_blocks-inl.h) and CUDA (cuda/) have theirs, all with these bits. Products with scales are exact but for
// subnormal ones, and sums round to nearest.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

namespace so {

inline constexpr std::int64_t moment_block = 256;  // elements with one scale
constexpr std::int64_t moment_blocks(std::int64_t elements) { return (elements + moment_block - 1) / moment_block; }

// Codes of magnitudes: `fraction` bits below as many of exponent as make `bits` in all.
template <int fraction, int bits>
struct MomentCodes {
  static constexpr int shift = 23 - fraction;  // from a code to fp32
  static constexpr std::uint32_t largest_code = (1u << bits) - 1, half = 1u << (shift - 1);
  static constexpr std::uint32_t exponents = 1u << (bits - fraction);
  static constexpr std::uint32_t base = (128 - exponents) << 23;       // fp32 bits less those of the code
  static constexpr std::uint32_t smallest_normal = base + (1u << 23);  // as fp32 bits

  static constexpr float least() { return std::bit_cast<float>(smallest_normal); }
  // Of the scale.
  static float value(std::uint32_t code) {
    const std::uint32_t fp32 = (code << shift) + base;
    return code >> fraction ? std::bit_cast<float>(fp32) : std::bit_cast<float>(fp32 + (1u << 23)) - least();
  }
  // `scaled`: not negative, below 2, or not a number. `dither`: below 2^shift; `half` rounds to nearest, ties up.
  static std::uint32_t code(float scaled, std::uint32_t dither) {
    // Below that the sum has the bits of a fraction alone, at the size at which codes end.
    const std::uint32_t exact = scaled < least() ? std::bit_cast<std::uint32_t>(scaled + least()) - smallest_normal
                                                 : std::bit_cast<std::uint32_t>(scaled) - base;
    return std::min((exact + dither) >> shift, largest_code);
  }
};
using FirstMomentCodes = MomentCodes<4, 7>;
using SecondMomentCodes = MomentCodes<3, 8>;
inline constexpr std::uint32_t moment_sign = 0x80;  // of a first moment's code

// The scale of a block whose largest magnitude has these bits as fp32.
struct MomentScale {
  static constexpr std::uint32_t least_field = 127 - 90, most_field = 253;
  explicit MomentScale(std::uint32_t largest) {
    const std::uint32_t field = largest >> 23, used = std::min(field, most_field);
    const bool finite = field < 255, kept = finite && field >= least_field;
    value = std::bit_cast<float>(!finite ? 255u << 23 : kept ? used << 23 : 0u);
    inverse = std::bit_cast<float>(kept ? (254 - used) << 23 : 0u);
    exponent = kept ? (used - 127) << 23 : 0u;
  }
  // What the bits of a normal number have more than those of its code; more than any has, where the codes say nothing.
  template <class Codes>
  std::uint32_t bits_below() const {
    return inverse > 0 ? Codes::base + exponent : 0x7fffffffu;
  }
  float value, inverse;    // inverse: 0 where the codes say nothing
  std::uint32_t exponent;  // in fp32's place
};

inline constexpr std::uint32_t moment_hash_factor = 0x9e3779b1u;  // 2^32 over the golden ratio, an odd number
// 32 bits by which an element's two moments, whose bits these are, are rounded in a step: the uppermost ones are used.
constexpr std::uint32_t moment_hash(std::uint32_t first, std::uint32_t second, std::uint32_t step) {
  return (first ^ second << 11 ^ step) * moment_hash_factor;
}
template <class Codes>
constexpr std::uint32_t moment_dither(std::uint32_t hash) {
  return hash >> (32 - Codes::shift);
}

template <class Codes>
float moment_magnitude(std::uint32_t code, float scale) {
  return std::isinf(scale) ? scale : Codes::value(code) * scale;
}
inline float first_moment_value(std::uint8_t code, float scale) {
  const float magnitude = moment_magnitude<FirstMomentCodes>(code & ~moment_sign, scale);
  return code & moment_sign ? -magnitude : magnitude;
}
inline float second_moment_value(std::uint8_t code, float scale) {
  return moment_magnitude<SecondMomentCodes>(code, scale);
}

inline std::uint8_t first_moment_code(float moment, const MomentScale& scale, std::uint32_t dither) {
  const auto bits = std::bit_cast<std::uint32_t>(moment);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffu) * scale.inverse;
  return static_cast<std::uint8_t>(FirstMomentCodes::code(magnitude, dither) | (bits >> 24 & moment_sign));
}
inline std::uint8_t second_moment_code(float moment, const MomentScale& scale, std::uint32_t dither) {
  const std::uint32_t code = SecondMomentCodes::code(moment * scale.inverse, dither);
  return static_cast<std::uint8_t>(code == 0 && moment > 0 && scale.value > 0 ? 1u : code);
}

// The bits of the largest magnitude, by which what is not a number is larger than all numbers.
inline std::uint32_t largest_magnitude(std::span<const float> moments) {
  std::uint32_t largest = 0;
  for (const float moment : moments) largest = std::max(largest, std::bit_cast<std::uint32_t>(moment) & 0x7fffffffu);
  return largest;
}

}  // namespace so
