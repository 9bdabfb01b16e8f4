#include "ops/cpu/simd_sgemm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/simd_sgemm.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#ifndef SO_OPS_CPU_SIMD_SGEMM_ONCE
#define SO_OPS_CPU_SIMD_SGEMM_ONCE
namespace so::sgemm_blocks {

// The innermost loop keeps 8 rows by 3 vectors of sums in registers, of which NEON and SVE have 32. A block of B's rows
// that it goes through stays in the first cache (12 KiB with 128-bit vectors), the packed blocks of A and B in the
// second.
constexpr std::int64_t rows = 8, vectors = 3;
constexpr std::int64_t inner = 256, outer_rows = 192, outer_columns = 480;

// With so few rows of op(A), B transposed is read in place, since packing would take longer than multiplying.
constexpr std::int64_t few_rows = 4;

}  // namespace so::sgemm_blocks
#endif

HWY_BEFORE_NAMESPACE();
namespace so {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
namespace blocks = sgemm_blocks;

std::int64_t columns_of_block() {
  return blocks::vectors * static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
}

// sums[r, j] = sum over p of a[p, r] b[p, j] for a packed block: 8 rows, 3 vectors of columns. Vectors of SVE have no
// size that a compiler knows, and so fit into no array.
#define SO_EACH_ROW(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
#define SO_ZERO(r) auto sum##r##0 = hn::Zero(d), sum##r##1 = hn::Zero(d), sum##r##2 = hn::Zero(d);
#define SO_STORE(r)                                                   \
  hn::StoreU(sum##r##0, d, sums + (r)*blocks::vectors * lanes);       \
  hn::StoreU(sum##r##1, d, sums + ((r)*blocks::vectors + 1) * lanes); \
  hn::StoreU(sum##r##2, d, sums + ((r)*blocks::vectors + 2) * lanes);
#if HWY_TARGET == HWY_NEON
// Its multiplication takes one element of a vector; loading into all elements would use the pipes that multiply.
#define SO_FACTORS const auto low = hn::LoadU(d, a), high = hn::LoadU(d, a + 4);
#define SO_FACTOR(r) hn::Broadcast<(r) % 4>((r) < 4 ? low : high)
#else
#define SO_FACTORS
#define SO_FACTOR(r) hn::Set(d, a[r])
#endif
#define SO_MULTIPLY(r)                             \
  {                                                \
    const auto factor = SO_FACTOR(r);              \
    sum##r##0 = hn::MulAdd(b0, factor, sum##r##0); \
    sum##r##1 = hn::MulAdd(b1, factor, sum##r##1); \
    sum##r##2 = hn::MulAdd(b2, factor, sum##r##2); \
  }
HWY_NOINLINE void multiply_block(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, std::int64_t k,
                                 float* HWY_RESTRICT sums) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  SO_EACH_ROW(SO_ZERO)
  for (std::int64_t p = 0; p < k; ++p) {
    const auto b0 = hn::LoadU(d, b), b1 = hn::LoadU(d, b + lanes), b2 = hn::LoadU(d, b + 2 * lanes);
    SO_FACTORS
    SO_EACH_ROW(SO_MULTIPLY)
    a += blocks::rows;
    b += blocks::vectors * lanes;
  }
  SO_EACH_ROW(SO_STORE)
}
#undef SO_EACH_ROW
#undef SO_ZERO
#undef SO_STORE
#undef SO_FACTORS
#undef SO_FACTOR
#undef SO_MULTIPLY

// One row: c = alpha sums + beta c, with beta 0 without reading c.
void put_row(float* HWY_RESTRICT c, const float* HWY_RESTRICT sums, std::int64_t count, float alpha, float beta) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto scale = hn::Set(d, alpha), keep = hn::Set(d, beta);
  std::int64_t j = 0;
  for (; j + lanes <= count; j += lanes) {
    const auto product = hn::Mul(scale, hn::LoadU(d, sums + j));
    hn::StoreU(beta == 0 ? product : hn::MulAdd(keep, hn::LoadU(d, c + j), product), d, c + j);
  }
  for (; j < count; ++j) {
    const float product = alpha * sums[j];
    c[j] = beta == 0 ? product : std::fma(beta, c[j], product);
  }
}

// One element of C for a row of op(A) and a row of B as stored: in 16 sums, whatever the length of a vector.
float dot(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, std::int64_t k) {
  std::int64_t p = 0;
  float four[4];
#if HWY_TARGET == HWY_SCALAR
  float sums[16] = {};
  for (; p + 16 <= k; p += 16)
    for (int i = 0; i < 16; ++i) sums[i] = std::fma(a[p + i], b[p + i], sums[i]);
  for (int i = 0; i < 4; ++i) four[i] = (sums[i] + sums[i + 4]) + (sums[i + 8] + sums[i + 12]);
#else
  const hn::FixedTag<float, 4> d;
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  for (; p + 16 <= k; p += 16) {
    sum0 = hn::MulAdd(hn::LoadU(d, a + p), hn::LoadU(d, b + p), sum0);
    sum1 = hn::MulAdd(hn::LoadU(d, a + p + 4), hn::LoadU(d, b + p + 4), sum1);
    sum2 = hn::MulAdd(hn::LoadU(d, a + p + 8), hn::LoadU(d, b + p + 8), sum2);
    sum3 = hn::MulAdd(hn::LoadU(d, a + p + 12), hn::LoadU(d, b + p + 12), sum3);
  }
  hn::StoreU(hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)), d, four);
#endif
  float sum = (four[0] + four[1]) + (four[2] + four[3]);
  for (; p < k; ++p) sum = std::fma(a[p], b[p], sum);
  return sum;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace so
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {
namespace {

namespace blocks = sgemm_blocks;

HWY_EXPORT(columns_of_block);
HWY_EXPORT(multiply_block);
HWY_EXPORT(put_row);
HWY_EXPORT(dot);

// An operand as it is stored, in blocks of `width` rows (of op(A)) or columns (of op(B)) that lie across the inner
// dimension.
struct Operand {
  const float* data;
  std::int64_t stride;
  bool inner_is_rows;  // the inner dimension counts stored rows
};

// Packs `count` lines across the inner dimension, from `first` on, as blocks of `width` of them: for each inner index
// the block's elements side by side. The last block is filled up with zeros.
void pack(const Operand& from, std::int64_t first, std::int64_t count, std::int64_t width, std::int64_t inner_first,
          std::int64_t inner, float* to) {
  for (std::int64_t begin = 0; begin < count; begin += width, to += width * inner) {
    const std::int64_t lines = std::min(width, count - begin);
    if (lines < width) std::fill_n(to, width * inner, 0.0f);
    if (from.inner_is_rows) {
      const float* row = from.data + inner_first * from.stride + first + begin;
      for (std::int64_t p = 0; p < inner; ++p) std::copy_n(row + p * from.stride, lines, to + p * width);
    } else {
      for (std::int64_t line = 0; line < lines; ++line) {
        const float* row = from.data + (first + begin + line) * from.stride + inner_first;
        for (std::int64_t p = 0; p < inner; ++p) to[p * width + line] = row[p];
      }
    }
  }
}

void few_rows(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const float* a, std::int64_t a_stride,
              const float* b, std::int64_t b_stride, float beta, float* c, std::int64_t c_stride) {
  for (std::int64_t j = 0; j < n; ++j)
    for (std::int64_t i = 0; i < m; ++i) {
      const float sum = HWY_DYNAMIC_DISPATCH(dot)(a + i * a_stride, b + j * b_stride, k);
      HWY_DYNAMIC_DISPATCH(put_row)(c + i * c_stride + j, &sum, 1, alpha, beta);
    }
}

// A rectangle of C, to which the products of one block of the inner dimension are added.
struct Target {
  float* c;
  std::int64_t stride, rows, columns;
  float alpha, beta;
};

void multiply_packed(const float* a, const float* b, std::int64_t inner, std::int64_t width, const Target& to,
                     float* sums) {
  for (std::int64_t column = 0; column < to.columns; column += width) {
    const std::int64_t columns = std::min(width, to.columns - column);
    for (std::int64_t row = 0; row < to.rows; row += blocks::rows) {
      const std::int64_t rows = std::min(blocks::rows, to.rows - row);
      HWY_DYNAMIC_DISPATCH(multiply_block)(a + row * inner, b + column * inner, inner, sums);
      for (std::int64_t r = 0; r < rows; ++r) HWY_DYNAMIC_DISPATCH(put_row)
      (to.c + (row + r) * to.stride + column, sums + r * width, columns, to.alpha, to.beta);
    }
  }
}

std::int64_t round_up_to(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

void simd_sgemm(bool a_transposed, bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride, float beta, float* c,
                std::int64_t c_stride) {
  if (m <= 0 || n <= 0) return;
  if (k <= 0) {
    const std::vector<float> none(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < m; ++i) HWY_DYNAMIC_DISPATCH(put_row)(c + i * c_stride, none.data(), n, alpha, beta);
    return;
  }
  if (m <= blocks::few_rows && !a_transposed && b_transposed)
    return few_rows(m, n, k, alpha, a, a_stride, b, b_stride, beta, c, c_stride);
  const std::int64_t width = HWY_DYNAMIC_DISPATCH(columns_of_block)();
  const std::int64_t inner_size = std::min(k, blocks::inner);
  const std::int64_t columns_size = std::min(n, std::max(width, blocks::outer_columns / width * width));
  const std::int64_t rows_size = std::min(m, blocks::outer_rows);
  thread_local std::vector<float> packed_a, packed_b, sums;  // kept for the thread's next product
  const auto room = [](std::vector<float>& buffer, std::int64_t count) {
    if (buffer.size() < static_cast<std::size_t>(count)) buffer.resize(static_cast<std::size_t>(count));
    return buffer.data();
  };
  float* const pa = room(packed_a, round_up_to(rows_size, blocks::rows) * inner_size);
  float* const pb = room(packed_b, round_up_to(columns_size, width) * inner_size);
  float* const block = room(sums, blocks::rows * width);
  const Operand left{a, a_stride, a_transposed}, right{b, b_stride, !b_transposed};
  for (std::int64_t column = 0; column < n; column += columns_size) {
    const std::int64_t columns = std::min(columns_size, n - column);
    for (std::int64_t first = 0; first < k; first += inner_size) {
      const std::int64_t inner = std::min(inner_size, k - first);
      pack(right, column, columns, width, first, inner, pb);
      for (std::int64_t row = 0; row < m; row += rows_size) {
        const std::int64_t rows = std::min(rows_size, m - row);
        pack(left, row, rows, blocks::rows, first, inner, pa);
        multiply_packed(pa, pb, inner, width,
                        {c + row * c_stride + column, c_stride, rows, columns, alpha, first == 0 ? beta : 1.0f}, block);
      }
    }
  }
}

}  // namespace so
#endif  // HWY_ONCE
