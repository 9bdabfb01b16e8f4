#include "ops/cpu/gemm.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "device/backend.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/scratch.h"
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
// Inner elements of bf16 operands that are widened at a time, so that the copies stay in the cache.
constexpr std::int64_t inner_block = 512;
// A thread keeps no more floats than this for a tile, fp32 copies of both operands and sums that C cannot hold. Without
// a limit products over few tokens would take tens of megabytes a thread.
constexpr std::int64_t scratch_floats = 1 << 20;
static_assert(scratch_floats * sizeof(float) == bf16_product_scratch);
// oneDNN's AVX-512 kernel computes blocks of 48 columns by 8 rows: tiles are whole blocks.
constexpr std::int64_t row_block = 8, column_block = 48;

struct Tiles {
  std::int64_t rows, columns;  // of a tile; the last ones are smaller
  std::int64_t row_count, column_count;
};

// Whether fp32 sums go straight to C, which can hold them; else they go to scratch first, to be rounded once.
bool sums_in_place(const Gemm& g) { return g.c_type == DType::f32 && (g.ab == DType::f32 || !g.add) && g.k > 0; }

// The floats that a tile of a product has in the scratch of its thread. bf16 counts as if widened on every CPU, so that
// all cut the same tiles.
struct ScratchSize {
  std::int64_t a, b, sums;
  std::int64_t all() const { return a + b + sums; }
};
ScratchSize scratch_size(const Gemm& g, std::int64_t rows, std::int64_t columns) {
  const std::int64_t inner = g.ab == DType::bf16 ? std::min(g.k, inner_block) : 0;
  return {rows * inner, columns * inner, sums_in_place(g) ? 0 : rows * columns};
}

Tiles cut(const Gemm& g) {
  std::int64_t row_cuts = 1, column_cuts = 1;
  for (;;) {
    const std::int64_t least_rows = ceil_div(g.m, row_cuts), least_columns = ceil_div(g.n, column_cuts);
    const std::int64_t rows = std::min(g.m, round_up(least_rows, row_block));
    const std::int64_t columns = std::min(g.n, round_up(least_columns, column_block));
    const bool small = 2 * least_rows * least_columns * std::max<std::int64_t>(g.k, 1) <= tile_flops &&
                       scratch_size(g, rows, columns).all() <= scratch_floats;
    if (small || std::max(least_rows, least_columns) < 2 * min_side)
      return {rows, columns, ceil_div(g.m, rows), ceil_div(g.n, columns)};
    (least_rows >= least_columns ? row_cuts : column_cuts) *= 2;
  }
}

// C = op(A) op(B) for bf16 operands through fp32 copies `a` and `b`, a block of the inner dimension at a time.
void widened_product(const Gemm& g, float* a, float* b, float* c, std::int64_t c_stride) {
  for (std::int64_t begin = 0; begin < g.k; begin += inner_block) {
    const std::int64_t inner = std::min(inner_block, g.k - begin);
    const auto widen = [&](float* to, const void* from, std::int64_t stride, bool inner_is_rows, std::int64_t outer) {
      const std::int64_t rows = inner_is_rows ? inner : outer, columns = inner_is_rows ? outer : inner;
      const void* first = advance(from, DType::bf16, inner_is_rows ? begin * stride : begin);
      for (std::int64_t r = 0; r < rows; ++r)
        load_row(to + r * columns, advance(first, DType::bf16, r * stride), DType::bf16, columns);
    };
    widen(a, g.a, g.a_stride, g.a_transposed, g.m);
    widen(b, g.b, g.b_stride, !g.b_transposed, g.n);
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
  const bool f32 = g.ab == DType::f32, direct = sums_in_place(g);
  const bool widened = !f32 && path == Bf16Path::widened;
  const ScratchSize size = scratch_size(g, g.m, g.n);
  thread_local Scratch memory;
  const auto [a, b, in_scratch] = memory.carve(widened ? size.a : 0, widened ? size.b : 0, size.sums);
  float* sums = direct ? static_cast<float*>(g.c) : in_scratch;
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
    widened_product(g, a, b, sums, stride);
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
    cuts.push_back(g.m > 0 && g.n > 0 ? cut(g) : Tiles{});
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
