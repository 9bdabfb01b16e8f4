#include "ops/cpu/gemm.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/tile_product.h"

namespace so {
namespace {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

// Tiles of at most this much work, a millisecond or two: waking the pool is a small part, and a micro-batch still gives
// every core several tiles. Smaller ones would spread over more cores but cost everywhere, since a tile packs its
// operands anew, m k + k n elements for m n k multiplications: a fourth of the size is 5 to 10% slower on one core. For
// the same reason no side is cut below `min_side`.
constexpr std::int64_t tile_flops = 250'000'000;
constexpr std::int64_t min_side = 192;
// oneDNN's AVX-512 kernel computes blocks of 48 columns by 8 rows: tiles are whole blocks.
constexpr std::int64_t row_block = 8, column_block = 48;

struct Tiles {
  std::int64_t rows, columns;  // of a tile; the last ones are smaller
  std::int64_t row_count, column_count;
};

Tiles cut(std::int64_t m, std::int64_t n, std::int64_t k) {
  std::int64_t row_cuts = 1, column_cuts = 1;
  for (;;) {
    const std::int64_t rows = ceil_div(m, row_cuts), columns = ceil_div(n, column_cuts);
    if (2 * rows * columns * std::max<std::int64_t>(k, 1) <= tile_flops) break;
    if (std::max(rows, columns) < 2 * min_side) break;
    (rows >= columns ? row_cuts : column_cuts) *= 2;
  }
  const std::int64_t rows = std::min(m, round_up(ceil_div(m, row_cuts), row_block));
  const std::int64_t columns = std::min(n, round_up(ceil_div(n, column_cuts), column_block));
  return {rows, columns, ceil_div(m, rows), ceil_div(n, columns)};
}

// Scratch of the calling thread, kept for its next tile.
float* scratch(std::size_t slot, std::int64_t count) {
  thread_local std::vector<float> buffers[3];
  auto& buffer = buffers[slot];
  if (buffer.size() < static_cast<std::size_t>(count)) buffer.resize(static_cast<std::size_t>(count));
  return buffer.data();
}

// C = op(A) op(B) for bf16 operands through fp32 copies, a block of the inner dimension at a time so that they stay in
// the cache.
void widened_product(const Gemm& g, float* c, std::int64_t c_stride) {
  constexpr std::int64_t inner_block = 512;
  for (std::int64_t begin = 0; begin < g.k; begin += inner_block) {
    const std::int64_t inner = std::min(inner_block, g.k - begin);
    const auto widen = [&](std::size_t slot, const void* from, std::int64_t stride, bool inner_is_rows,
                           std::int64_t outer) {
      const std::int64_t rows = inner_is_rows ? inner : outer, columns = inner_is_rows ? outer : inner;
      float* to = scratch(slot, rows * columns);
      const void* first = advance(from, DType::bf16, inner_is_rows ? begin * stride : begin);
      for (std::int64_t r = 0; r < rows; ++r)
        load_row(to + r * columns, advance(first, DType::bf16, r * stride), DType::bf16, columns);
      return to;
    };
    const float* a = widen(0, g.a, g.a_stride, g.a_transposed, g.m);
    const float* b = widen(1, g.b, g.b_stride, !g.b_transposed, g.n);
    products::sgemm(g.a_transposed, g.b_transposed, g.m, g.n, inner, 1.0f, a, g.a_transposed ? g.m : inner, b,
                    g.b_transposed ? inner : g.n, begin == 0 ? 0.0f : 1.0f, c, c_stride);
  }
}

void check(const Gemm& g) {
  SO_CHECK(g.ab == DType::f32 || g.ab == DType::bf16, "a product of {}", name_of(g.ab));
  SO_CHECK(g.c_type == DType::f32 || (g.c_type == DType::bf16 && g.ab == DType::bf16), "a product of {} to {}",
           name_of(g.ab), name_of(g.c_type));
  SO_CHECK(g.m >= 0 && g.n >= 0 && g.k >= 0, "[{}, {}, {}]", g.m, g.n, g.k);
}

}  // namespace

Bf16Path best_bf16_path() { return products::has_bf16() ? Bf16Path::native : Bf16Path::widened; }

void gemm_tile(const Gemm& g, Bf16Path path) {
  check(g);
  if (g.m == 0 || g.n == 0) return;
  // fp32 sums go straight to C when C can hold them; else to scratch first, to be rounded once.
  const bool f32 = g.ab == DType::f32;
  const bool direct = g.c_type == DType::f32 && (f32 || !g.add) && g.k > 0;
  float* sums = direct ? static_cast<float*>(g.c) : scratch(2, g.m * g.n);
  const std::int64_t stride = direct ? g.c_stride : g.n;
  if (g.k == 0) {
    std::fill_n(sums, g.m * g.n, 0.0f);
  } else if (f32) {
    products::sgemm(g.a_transposed, g.b_transposed, g.m, g.n, g.k, 1.0f, static_cast<const float*>(g.a), g.a_stride,
                    static_cast<const float*>(g.b), g.b_stride, g.add ? 1.0f : 0.0f, sums, stride);
  } else if (path == Bf16Path::native) {
    products::bf16_gemm(g.a_transposed, g.b_transposed, g.m, g.n, g.k, static_cast<const bf16*>(g.a), g.a_stride,
                        static_cast<const bf16*>(g.b), g.b_stride, sums, stride);
  } else {
    widened_product(g, sums, stride);
  }
  if (direct && !g.bias) return;
  for (std::int64_t r = 0; r < g.m; ++r)
    store_row(advance(g.c, g.c_type, r * g.c_stride), g.c_type, sums + r * stride, g.n, g.bias, g.ab, g.add && !direct);
}

void gemm(ThreadPool& pool, const Gemm& g, Bf16Path path) { gemm(pool, std::span(&g, 1), path); }

void gemm(ThreadPool& pool, std::span<const Gemm> products, Bf16Path path) {
  std::vector<Tiles> cuts;
  std::vector<std::int64_t> first = {0};  // the number of each product's first tile
  for (const Gemm& g : products) {
    check(g);
    cuts.push_back(g.m > 0 && g.n > 0 ? cut(g.m, g.n, g.k) : Tiles{});
    first.push_back(first.back() + cuts.back().row_count * cuts.back().column_count);
  }
  pool.parallel_for(first.back(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t number = begin; number < end; ++number) {
      // The last product to begin at or before it, which is not one without tiles.
      const auto which = static_cast<std::size_t>(std::ranges::upper_bound(first, number) - first.begin()) - 1;
      const Gemm& g = products[which];
      const Tiles& tiles = cuts[which];
      const std::int64_t index = number - first[which];
      const std::int64_t row = index / tiles.column_count * tiles.rows;
      const std::int64_t column = index % tiles.column_count * tiles.columns;
      Gemm tile = g;
      tile.m = std::min(tiles.rows, g.m - row);
      tile.n = std::min(tiles.columns, g.n - column);
      tile.a = advance(g.a, g.ab, g.a_transposed ? row : row * g.a_stride);
      tile.b = advance(g.b, g.ab, g.b_transposed ? column * g.b_stride : column);
      tile.c = advance(g.c, g.c_type, row * g.c_stride + column);
      if (g.bias) tile.bias = advance(g.bias, g.ab, column);
      gemm_tile(tile, path);
    }
  });
}

}  // namespace so
