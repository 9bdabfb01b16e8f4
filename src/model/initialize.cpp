#include "model/initialize.h"

#include <cmath>
#include <numbers>

#include "base/mix_bits.h"

namespace so {
namespace {

// splitmix64 (Steele, Lea & Flood 2014) on a counter.
std::uint64_t mix(std::uint64_t x) { return mix_bits(x + 0x9e3779b97f4a7c15u); }

}  // namespace

void initialize(const DecoderSpec& spec, const Parameter& parameter, std::uint64_t seed, std::int64_t begin,
                std::span<float> out) {
  const bool matrix = parameter.shape.size() == 2;
  if (!matrix) {
    const bool bias = parameter.name.ends_with(".bias");
    for (float& x : out) x = bias ? 0.0f : 1.0f;
    return;
  }
  std::uint64_t stream = mix(seed);
  for (const char c : parameter.name) stream = mix(stream ^ static_cast<unsigned char>(c));
  for (std::size_t i = 0; i < out.size(); ++i) {
    // Box-Muller: elements 2k and 2k+1 share one draw.
    const auto element = static_cast<std::uint64_t>(begin) + i;
    const std::uint64_t draw = mix(stream ^ (element / 2));
    const double u = (static_cast<double>(draw >> 40) + 0.5) * 0x1p-24;
    const double angle = static_cast<double>(draw & 0xffffffu) * 0x1p-24 * 2 * std::numbers::pi;
    const double radius = std::sqrt(-2 * std::log(u));
    out[i] =
        static_cast<float>(spec.initializer_range * radius * (element % 2 == 0 ? std::cos(angle) : std::sin(angle)));
  }
}

}  // namespace so
