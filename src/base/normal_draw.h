// Normally distributed numbers as a function of a counter: any element can be drawn alone, on any thread or device.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "base/mix_bits.h"

namespace so {

// The start of a stream of draws: splitmix64 (Steele, Lea & Flood 2014) on a counter.
constexpr std::uint64_t mix_counter(std::uint64_t x) { return mix_bits(x + 0x9e3779b97f4a7c15u); }

// Element `i` of `stream`: mean 0, standard deviation 1. Box & Muller 1958; elements 2k and 2k + 1 share one draw.
inline double normal_draw(std::uint64_t stream, std::uint64_t i) {
  const std::uint64_t draw = mix_counter(stream ^ (i / 2));
  const double u = (static_cast<double>(draw >> 40) + 0.5) * 0x1p-24;
  const double angle = static_cast<double>(draw & 0xffffffu) * 0x1p-24 * 2 * std::numbers::pi;
  const double radius = std::sqrt(-2 * std::log(u));
  return radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

}  // namespace so
