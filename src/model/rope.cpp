#include "model/rope.h"

#include <cmath>
#include <numbers>

namespace so {

std::vector<float> rope_frequencies(const RopeSpec& rope) {
  const std::int64_t half = rope.rotary_dim / 2;
  std::vector<float> frequencies(static_cast<std::size_t>(half));
  for (std::int64_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope.rotary_dim);
    float frequency = 1.0f / std::pow(static_cast<float>(rope.theta), exponent);
    if (rope.scaling == RopeScaling::llama3) {
      const auto original = static_cast<double>(rope.original_positions);
      const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
      if (wavelength > original / rope.low_freq_factor) {
        frequency = frequency / static_cast<float>(rope.factor);
      } else if (wavelength >= original / rope.high_freq_factor) {
        const float smooth = (static_cast<float>(original) / wavelength - static_cast<float>(rope.low_freq_factor)) /
                             static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
        frequency = (1 - smooth) * frequency / static_cast<float>(rope.factor) + smooth * frequency;
      }
    }
    frequencies[static_cast<std::size_t>(i)] = frequency;
  }
  return frequencies;
}

std::vector<float> rope_table(const RopeSpec& rope, std::int64_t positions) {
  const auto frequencies = rope_frequencies(rope);
  const std::size_t half = frequencies.size();
  std::vector<float> table(static_cast<std::size_t>(positions) * 2 * half);
  for (std::size_t p = 0; p < static_cast<std::size_t>(positions); ++p)
    for (std::size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * frequencies[i];
      table[(2 * p) * half + i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      table[(2 * p + 1) * half + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  return table;
}

}  // namespace so
