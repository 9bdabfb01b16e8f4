#include "io/mxfp4.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace so {
namespace {

constexpr int tile_rows = 32;  // of the matrix, at a time: a cache line of bf16 in each row of the result

// 2^(scale - 127); of 0 that is subnormal.
float power_of(std::uint8_t scale) {
  const auto bits = scale == 0 ? std::uint32_t{1} << 22 : std::uint32_t{scale} << 23;
  return std::bit_cast<float>(bits);
}

// A four-bit float, whose magnitudes are 0, 0.5, 1, 1.5, 2, 3, 4 and 6. Those from 1 on have the bits of fp32, two of
// exponent and one of fraction; without branches or a table, so that a loop over it is made of vectors.
float value_of(std::uint32_t bits) {
  const std::uint32_t magnitude = bits & 7u;
  std::uint32_t wide = (magnitude << 22) + (126u << 23);
  wide &= ~(std::uint32_t{magnitude == 1} << 22);
  wide &= 0u - std::uint32_t{magnitude != 0};
  return std::bit_cast<float>(wide | (bits & 8u) << 28);
}

// The upper half: exact, since no value here has more bits than bf16.
bf16 narrowed(float value) {
  bf16 result;
  result.bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  return result;
}

// One block of each of tile_rows rows, turned.
struct Tile {
  std::uint8_t bytes[Mxfp4Matrix::block_bytes][tile_rows] = {};
  float power[tile_rows] = {};

  void column(std::int64_t c, float* values) const {
    const std::uint8_t* const pairs = bytes[c / 2];
    const int shift = c % 2 == 0 ? 0 : 4;
    for (int r = 0; r < tile_rows; ++r) values[r] = value_of(std::uint32_t{pairs[r]} >> shift) * power[r];
  }
};

}  // namespace

void dequantise_transposed(const Mxfp4Matrix& m, const Mxfp4Window& w, float* wide, bf16* narrow) {
  constexpr std::int64_t block = Mxfp4Matrix::block;
  SO_CHECK(m.columns % block == 0 && 0 <= w.row_begin && w.row_begin <= w.row_end && w.row_end <= m.rows &&
               0 <= w.column_begin && w.column_begin <= w.column_end && w.column_end <= m.columns,
           "rows [{}, {}), columns [{}, {}) of [{}, {}]", w.row_begin, w.row_end, w.column_begin, w.column_end, m.rows,
           m.columns);
  const std::int64_t blocks = m.columns / block, out_columns = w.row_end - w.row_begin;
  Tile tile;
  for (std::int64_t b = w.column_begin / block; b * block < w.column_end; ++b) {
    const std::int64_t first = std::max(w.column_begin - b * block, std::int64_t{0}),
                       last = std::min(w.column_end - b * block, block);
    for (std::int64_t row = w.row_begin; row < w.row_end; row += tile_rows) {
      const auto rows = static_cast<int>(std::min<std::int64_t>(tile_rows, w.row_end - row));
      for (int r = 0; r < rows; ++r) {
        const std::int64_t index = (row + r) * blocks + b;
        const std::byte* const bytes = m.blocks + index * Mxfp4Matrix::block_bytes;
        tile.power[r] = power_of(m.scales[index]);
        for (int j = 0; j < Mxfp4Matrix::block_bytes; ++j) tile.bytes[j][r] = std::to_integer<std::uint8_t>(bytes[j]);
      }
      for (std::int64_t c = first; c < last; ++c) {
        const std::int64_t at = (b * block + c - w.column_begin) * out_columns + row - w.row_begin;
        float values[tile_rows];
        tile.column(c, values);
        if (wide != nullptr) std::memcpy(wide + at, values, static_cast<std::size_t>(rows) * sizeof(float));
        if (narrow != nullptr) {
          bf16 half[tile_rows];
          for (int r = 0; r < tile_rows; ++r) half[r] = narrowed(values[r]);
          std::memcpy(narrow + at, half, static_cast<std::size_t>(rows) * sizeof(bf16));
        }
      }
    }
  }
}

}  // namespace so
