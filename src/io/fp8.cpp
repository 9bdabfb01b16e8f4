#include "io/fp8.h"

#include <algorithm>

#include "base/bf16_arrays.h"
#include "base/e4m3.h"
#include "base/error.h"

namespace so {
namespace {

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
