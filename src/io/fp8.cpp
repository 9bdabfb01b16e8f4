#include "io/fp8.h"

#include <algorithm>
#include <bit>

#include "base/bf16_arrays.h"
#include "base/error.h"

namespace so {
namespace {

// E4M3: a sign, four bits of exponent with a bias of 7, three of fraction; an exponent of 0 is subnormal, and all ones
// below the sign is not a number. Without branches or a table, so that a loop over it is made of vectors, and without
// subnormal numbers of fp32, which some threads take for 0.
float e4m3_value(std::uint8_t code) {
  constexpr std::uint32_t bias = 127 - 7, fraction_bits = 20;
  const std::uint32_t magnitude = code & 0x7fu;
  const float smallest_normal = std::bit_cast<float>((bias + 1) << 23);
  const float normal = std::bit_cast<float>((magnitude << fraction_bits) + (bias << 23));
  const float subnormal = std::bit_cast<float>((magnitude << fraction_bits) + ((bias + 1) << 23)) - smallest_normal;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(magnitude < 8 ? subnormal : normal);
  bits |= magnitude == 0x7fu ? 0x7fc00000u : 0u;
  return std::bit_cast<float>(bits | (code & 0x80u) << 24);
}

// Codes that have one scale.
void times_scale(std::span<const std::uint8_t> codes, float scale, float* wide) {
  for (std::size_t i = 0; i < codes.size(); ++i) wide[i] = e4m3_value(codes[i]) * scale;
}

}  // namespace

void dequantise_fp8(const Fp8Scales& scales, std::int64_t begin, std::span<const std::uint8_t> codes, float* wide,
                    bf16* narrow) {
  constexpr std::int64_t most = 1024;  // at a time: they are still near when they are rounded
  const std::int64_t blocks = (scales.columns + scales.block_columns - 1) / scales.block_columns;
  const std::int64_t end = begin + static_cast<std::int64_t>(codes.size());
  for (std::int64_t at = begin, size = 0; at < end; at += size) {
    const std::int64_t row = at / scales.columns, column = at % scales.columns, block = column / scales.block_columns;
    const std::int64_t block_end = std::min((block + 1) * scales.block_columns, scales.columns);
    size = std::min({block_end - column, end - at, most});
    const auto scale = static_cast<std::size_t>(row / scales.block_rows * blocks + block);
    SO_CHECK(scale < scales.values.size(), "row {} of a matrix with {} scales", row, scales.values.size());
    const auto from = static_cast<std::size_t>(at - begin), count = static_cast<std::size_t>(size);
    float buffer[most];
    float* const to = wide != nullptr ? wide + from : buffer;
    times_scale(codes.subspan(from, count), scales.values[scale], to);
    if (narrow != nullptr) round_to_bf16(to, narrow + from, count);
  }
}

}  // namespace so
