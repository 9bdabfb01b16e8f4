// E4M3, the 8-bit floating point of weights and activations [OCP 8-bit floating point, 2023]: a sign, four bits of
// exponent with a bias of 7, three of fraction. An exponent of 0 is subnormal, there is no infinity, and all ones below
// the sign is not a number. Without branches or tables, so that loops over them are made of vectors, and without
// subnormal numbers of fp32, which some threads take for 0.
#pragma once

#include <bit>
#include <cstdint>

namespace so {

inline constexpr float e4m3_largest = 448;
inline constexpr std::uint8_t e4m3_nan = 0x7f;

inline float e4m3_value(std::uint8_t code) {
  constexpr std::uint32_t bias = 127 - 7, fraction_bits = 20;
  const std::uint32_t magnitude = code & 0x7fu;
  const float smallest_normal = std::bit_cast<float>((bias + 1) << 23);
  const float normal = std::bit_cast<float>((magnitude << fraction_bits) + (bias << 23));
  const float subnormal = std::bit_cast<float>((magnitude << fraction_bits) + ((bias + 1) << 23)) - smallest_normal;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(magnitude < 8 ? subnormal : normal);
  bits |= magnitude == 0x7fu ? 0x7fc00000u : 0u;
  return std::bit_cast<float>(bits | (code & 0x80u) << 24);
}

// Rounds to nearest, ties to even. What is larger than the largest becomes e4m3_nan, and so does what is not a number.
inline std::uint8_t e4m3_code(float value) {
  constexpr std::uint32_t smallest_normal = (127u - 6) << 23, largest = (127u + 8) << 23 | 0x600000u;
  const auto bits = std::bit_cast<std::uint32_t>(value), magnitude = bits & 0x7fffffffu;
  // The sum with 2^14 has no room for more than the three bits of a subnormal code, and rounds to them.
  constexpr float magic = 16384;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + magic) - std::bit_cast<std::uint32_t>(magic);
  const std::uint32_t normal = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - ((127u - 7) << 3);
  const std::uint32_t code = magnitude < smallest_normal ? subnormal : normal;
  return magnitude > largest ? e4m3_nan : static_cast<std::uint8_t>(code | (bits >> 24 & 0x80u));
}

// The power of two by which a block of numbers is divided before it is rounded to E4M3, so that the largest magnitude
// fits just so, given that magnitude's bits as fp32. A block of zeros has 1. One with a number that is not finite has
// the largest scale, and that number becomes e4m3_nan.
struct E4m3Scale {
  explicit E4m3Scale(std::uint32_t largest) {
    constexpr std::uint32_t seven_quarters = 0x600000, least = 1, most = 127 + 120;
    std::uint32_t field = largest >> 23;
    if (largest == 0) field = 127 + 8;
    field += (largest & 0x7fffffu) > seven_quarters ? 1 : 0;
    field = field > 8 + least ? field - 8 : least;
    if (field > most) field = most;
    value = std::bit_cast<float>(field << 23);
    inverse = std::bit_cast<float>((254 - field) << 23);
  }
  float value, inverse;
};

}  // namespace so
