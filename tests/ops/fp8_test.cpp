// Matrices in FP8: their codes against a search among all values of E4M3, and their products against sums in double.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/e4m3.h"
#include "device/backend.h"
#include "ops/arrays.h"
#include "ops/fp8_layout.h"
#include "ops/ops.h"
#include "support/rig.h"

namespace so::fp8_test {
namespace {

using Blocks = Fp8Matrix::Blocks;
using testing::Array;
using testing::expect_close;
using testing::Expected;
using testing::Mirror;
using testing::unit_roundoff;

// The value of a code by the definition of the format; NaN for the two codes that are none.
double value_of(int code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  if ((code & 0x7f) == 0x7f) return std::nan("");
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

// The code whose value is nearest, of two the even one; with x's sign.
int nearest_code(double x) {
  int best = 0;
  for (int code = 1; code < 0x7f; ++code) {
    const double before = std::abs(value_of(best) - std::abs(x)), now = std::abs(value_of(code) - std::abs(x));
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(x) ? 0x80 : 0);
}

// The least power of two with which the largest magnitude is no more than 448.
double scale_of(double largest) {
  if (largest == 0) return 1;
  int exponent = -126;
  while (std::ldexp(448, exponent) < largest) ++exponent;
  return std::ldexp(1, exponent);
}

// A matrix in FP8 of the test's own.
class Codes {
 public:
  Codes(Blocks blocks, std::int64_t rows, std::int64_t k)
      : blocks_(blocks),
        rows_(rows),
        codes_(Array(DType::u8, {fp8_stored_rows(rows), Fp8Matrix::width(k)})),
        scales_(Array(DType::f32, shape(Fp8Matrix::scale_shape(blocks, rows, k)))) {
    // What an op leaves out is seen.
    for (std::int64_t i = 0; i < scales_.size(); ++i) scales_.set(i, -7);
  }
  Fp8Matrix on(const Mirror& codes, const Mirror& scales) const { return {blocks_, codes.tensor(), scales.tensor()}; }
  Array& codes() { return codes_; }
  Array& scales() { return scales_; }
  int code(std::int64_t r, std::int64_t k) const { return static_cast<int>(codes_[r * width() + k]); }
  double scale(std::int64_t r, std::int64_t k) {
    const std::int64_t stride = scales_.tensor().dim(1), block = k / fp8_block, blocks = width() / fp8_block;
    if (blocks_ == Blocks::squares) return scales_[r / fp8_block * stride + block];
    // In fours, and behind them those of the rows that fill no four.
    const std::int64_t whole = rows_ / 4 * 4;
    return r < whole ? scales_[block * whole + r] : scales_[blocks * whole + block * 4 + r % 4];
  }
  double value(std::int64_t r, std::int64_t k) { return value_of(code(r, k)) * scale(r, k); }
  std::vector<double> values(std::int64_t n, std::int64_t k) {
    std::vector<double> all;
    for (std::int64_t i = 0; i < n * k; ++i) all.push_back(value(i / k, i % k));
    return all;
  }

 private:
  static std::vector<std::int64_t> shape(const std::array<std::int64_t, 2>& s) { return {s[0], s[1]}; }
  std::int64_t width() const { return codes_.tensor().dim(1); }

  Blocks blocks_;
  std::int64_t rows_;
  mutable Array codes_, scales_;
};

// Numbers of very different magnitude, from block to block and within blocks.
Array spread(DType type, std::int64_t n, std::int64_t k, unsigned seed) {
  Array x = Array::random(type, {n, k}, seed);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < k; ++j) {
      const auto octaves = static_cast<int>((i * 5 + j / 64 * 11) % 23 - 11 - j % 7);
      x.set(i * k + j, std::ldexp(x[i * k + j], octaves));
    }
  return x;
}

void quantise(test::Rig& rig, Codes* rows, Codes* columns, Array& x) {
  Array none(DType::u8, {1}), no_scale(DType::f32, {1});
  Mirror from(rig.stream(), x);
  Mirror a(rig.stream(), rows ? rows->codes() : none), b(rig.stream(), rows ? rows->scales() : no_scale),
      c(rig.stream(), columns ? columns->codes() : none), d(rig.stream(), columns ? columns->scales() : no_scale);
  rig.ops().fp8_quantise(rig.stream(), rows ? rows->on(a, b) : Fp8Matrix(), columns ? columns->on(c, d) : Fp8Matrix(),
                         from.tensor());
  for (Mirror* mirror : {&a, &b, &c, &d}) mirror->fetch();
}

// Expects element (r, k) of `codes` to be that of x, whose block has this largest magnitude.
void expect_code(Codes& codes, std::int64_t r, std::int64_t k, double x, double largest) {
  const double scale = scale_of(largest);
  ASSERT_EQ(codes.scale(r, k), scale) << r << ", " << k << " of a block up to " << largest;
  ASSERT_EQ(codes.code(r, k), nearest_code(x / scale)) << x << " at " << r << ", " << k;
}

double largest_of(const Array& x, std::int64_t k, std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t c1) {
  double largest = 0;
  for (std::int64_t r = r0; r < r1; ++r)
    for (std::int64_t c = c0; c < c1; ++c) largest = std::max(largest, std::abs(x[r * k + c]));
  return largest;
}

TEST(E4m3, HasTheValuesOfTheFormat) {
  for (int code = 0; code < 256; ++code) {
    const double value = value_of(code);
    const float got = e4m3_value(static_cast<std::uint8_t>(code));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(got)) << code;
      EXPECT_EQ(e4m3_code(got), e4m3_nan) << code;
    } else {
      EXPECT_EQ(got, value) << code;
      EXPECT_EQ(e4m3_code(got), code);
    }
  }
}

TEST(E4m3, RoundsToTheNearest) {
  for (int code = 0; code < 0x7e; ++code) {
    const double low = value_of(code), high = value_of(code + 1), middle = (low + high) / 2;
    for (const double x : {middle, std::nextafter(static_cast<float>(middle), 0.0f) * 1.0,
                           std::nextafter(static_cast<float>(middle), 1e9f) * 1.0, low + 0.3 * (high - low)})
      for (const double sign : {1.0, -1.0}) {
        const auto value = static_cast<float>(sign * x);
        EXPECT_EQ(e4m3_code(value), nearest_code(value)) << value;
      }
  }
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {449.0f, -1e30f, infinity, -infinity, std::nanf("")}) EXPECT_EQ(e4m3_code(x), e4m3_nan) << x;
}

class Fp8Quantise : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Fp8Quantise, ::testing::Values(DType::f32, DType::bf16));

TEST_P(Fp8Quantise, RowsAndColumns) {
  test::Rig rig;
  for (const auto& [n, k] : std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 128}, {131, 256}}) {
    Array x = spread(GetParam(), n, k, 5);
    for (std::int64_t j = 0; j < 128; ++j) x.set(j, 0);  // a block of zeros
    Codes rows(Blocks::rows, n, k), columns(Blocks::rows, k, n), rows_alone(Blocks::rows, n, k),
        columns_alone(Blocks::rows, k, n);
    quantise(rig, &rows, &columns, x);
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < k; ++j) {
        const std::int64_t c0 = j / 128 * 128, r0 = i / 128 * 128;
        expect_code(rows, i, j, x[i * k + j], largest_of(x, k, i, i + 1, c0, c0 + 128));
        expect_code(columns, j, i, x[i * k + j], largest_of(x, k, r0, std::min(n, r0 + 128), j, j + 1));
        if (HasFatalFailure()) return;
      }
    for (std::int64_t j = 0; j < k; ++j) {
      for (std::int64_t i = n; i < Fp8Matrix::width(n); ++i) ASSERT_EQ(columns.code(j, i), 0);
      for (std::int64_t i = n; i < fp8_stored_rows(n); ++i) ASSERT_EQ(rows.code(i, j), 0);
    }
    quantise(rig, &rows_alone, nullptr, x);
    quantise(rig, nullptr, &columns_alone, x);
    EXPECT_EQ(rows.codes().bytes(), rows_alone.codes().bytes());
    EXPECT_EQ(rows.scales().bytes(), rows_alone.scales().bytes());
    EXPECT_EQ(columns.codes().bytes(), columns_alone.codes().bytes());
    EXPECT_EQ(columns.scales().bytes(), columns_alone.scales().bytes());
  }
}

TEST_P(Fp8Quantise, Squares) {
  test::Rig rig;
  const std::int64_t n = 128, k = 384;
  Array x = spread(GetParam(), n, k, 6);
  Codes rows(Blocks::squares, n, k), columns(Blocks::squares, k, n), alone(Blocks::squares, k, n);
  quantise(rig, &rows, &columns, x);
  quantise(rig, nullptr, &alone, x);
  EXPECT_EQ(columns.codes().bytes(), alone.codes().bytes());
  EXPECT_EQ(columns.scales().bytes(), alone.scales().bytes());
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < k; ++j) {
      const std::int64_t c0 = j / 128 * 128, r0 = i / 128 * 128;
      if (i % 128 == 0 && j % 128 == 0) {
        ASSERT_EQ(rows.scale(i, j), scale_of(largest_of(x, k, r0, r0 + 128, c0, c0 + 128)));
        ASSERT_EQ(columns.scale(j, i), rows.scale(i, j));
      }
      ASSERT_EQ(rows.code(i, j), nearest_code(x[i * k + j] / rows.scale(i, j)));
      ASSERT_EQ(columns.code(j, i), rows.code(i, j));
    }
}

// Of a number of rows that fills no whole squares the missing ones are zeros.
TEST_P(Fp8Quantise, SquaresOfColumns) {
  test::Rig rig;
  const std::int64_t n = 131, k = 256;
  Array x = spread(GetParam(), n, k, 7);
  Codes columns(Blocks::squares, k, n);
  quantise(rig, nullptr, &columns, x);
  for (std::int64_t j = 0; j < k; ++j)
    for (std::int64_t i = 0; i < Fp8Matrix::width(n); ++i) {
      const std::int64_t c0 = j / 128 * 128, r0 = i / 128 * 128;
      if (i % 128 == 0 && j % 128 == 0) {
        ASSERT_EQ(columns.scale(j, i), scale_of(largest_of(x, k, r0, std::min(n, r0 + 128), c0, c0 + 128)));
      }
      ASSERT_EQ(columns.code(j, i), i < n ? nearest_code(x[i * k + j] / columns.scale(j, i)) : 0) << j << ", " << i;
    }
}

// What is not finite is seen as such behind a product, and what is smallest and largest keeps its scale.
TEST_P(Fp8Quantise, NumbersAtTheEnds) {
  test::Rig rig;
  const std::int64_t n = 6, k = 128;
  Array x = Array::filled(GetParam(), {n, k}, 0.25);
  const double infinity = std::numeric_limits<double>::infinity();
  x.set(0 * k + 3, infinity), x.set(1 * k + 4, -infinity), x.set(2 * k + 5, std::nan(""));
  x.set(3 * k + 6, 3e38), x.set(4 * k + 7, 0x1p-126);
  for (std::int64_t j = 0; j < k; ++j)
    if (j != 7) x.set(4 * k + j, 0);
  Codes rows(Blocks::rows, n, k), columns(Blocks::rows, k, n);
  quantise(rig, &rows, &columns, x);
  for (std::int64_t i = 0; i < 3; ++i)
    for (std::int64_t j = 0; j < k; ++j) {
      EXPECT_EQ(rows.code(i, j) == e4m3_nan, j == 3 + i) << i << ", " << j;
      EXPECT_EQ(columns.code(j, i) == e4m3_nan, j == 3 + i) << i << ", " << j;
    }
  EXPECT_EQ(rows.scale(0, 0), 0x1p120);
  expect_code(rows, 3, 6, x[3 * k + 6], x[3 * k + 6]);
  EXPECT_EQ(rows.scale(4, 7), 0x1p-126);
  EXPECT_EQ(rows.value(4, 7), 0x1p-126);
  EXPECT_EQ(rows.value(5, 9), 0.25);
}

struct ProductCase {
  std::int64_t n, o, k;
  DType out, bias;  // bias i32: none
  bool add;
};

// A GPU adds the products of 128 elements with about 14 bits behind the largest, and these sums in fp32.
void check_product(const ProductCase& c) {
  test::Rig rig;
  if (!rig.ops().multiplies_fp8()) GTEST_SKIP() << "this GPU has no products in FP8";
  const DType t = c.out;
  Array x = spread(t, c.n, c.k, 7), w = Array::random(t, {c.o, c.k}, 8);
  Codes a(Blocks::rows, c.n, c.k), b(Blocks::squares, c.o, c.k);
  quantise(rig, &a, nullptr, x);
  quantise(rig, &b, nullptr, w);
  Array out = Array::random(c.out, {c.n, c.o}, 9), none(DType::f32, {1});
  const bool biased = c.bias != DType::i32;
  Array bias = biased ? Array::random(c.bias, {c.o}, 10) : none;
  const std::vector<double> of_a = a.values(c.n, c.k), of_b = b.values(c.o, c.k);
  Expected expected(c.n * c.o);
  const double gpu = test::on_gpu() ? 0x1p-11 : 0, fp32 = 2 * std::sqrt(static_cast<double>(c.k) + 2) * 0x1p-24;
  for (std::int64_t i = 0; i < c.n; ++i)
    for (std::int64_t j = 0; j < c.o; ++j) {
      double sum = (c.add ? out[i * c.o + j] : 0) + (biased ? bias[j] : 0), magnitude = std::abs(sum);
      for (std::int64_t l = 0; l < c.k; ++l) {
        const double term = of_a[static_cast<std::size_t>(i * c.k + l)] * of_b[static_cast<std::size_t>(j * c.k + l)];
        sum += term, magnitude += std::abs(term);
      }
      const auto at = static_cast<std::size_t>(i * c.o + j);
      expected.value[at] = sum;
      expected.tolerance[at] = (gpu + fp32) * magnitude + (biased && c.add ? 2 : 1) * unit_roundoff(c.out) * magnitude;
    }
  Mirror o(rig.stream(), out), ac(rig.stream(), a.codes()), as(rig.stream(), a.scales()), bc(rig.stream(), b.codes()),
      bs(rig.stream(), b.scales()), to_add(rig.stream(), bias);
  rig.ops().fp8_product(rig.stream(), o.tensor(), a.on(ac, as), b.on(bc, bs), biased ? to_add.tensor() : Tensor(),
                        c.add ? Accumulate::add : Accumulate::overwrite);
  o.fetch();
  expect_close(out, expected, "product");
}

TEST(Fp8Product, RowsTimesSquares) {
  check_product({5, 128, 256, DType::bf16, DType::bf16, false});
  check_product({130, 384, 640, DType::bf16, DType::i32, false});
  check_product({131, 256, 512, DType::bf16, DType::bf16, true});
  check_product({64, 256, 128, DType::f32, DType::f32, true});
  check_product({1, 128, 128, DType::f32, DType::i32, false});
  check_product({128, 256, 384, DType::f32, DType::i32, true});
  check_product({256, 128, 128, DType::bf16, DType::i32, true});
}

// What is not finite in an operand is not finite in what is made of it.
TEST(Fp8Product, PassesOnWhatIsNotFinite) {
  test::Rig rig;
  if (!rig.ops().multiplies_fp8()) GTEST_SKIP() << "this GPU has no products in FP8";
  const std::int64_t n = 4, o = 128, k = 256;
  Array x = Array::filled(DType::bf16, {n, k}, 1), w = Array::filled(DType::bf16, {o, k}, 1), out(DType::bf16, {n, o});
  x.set(2 * k + 200, std::numeric_limits<double>::infinity());
  Codes a(Blocks::rows, n, k), b(Blocks::squares, o, k);
  quantise(rig, &a, nullptr, x);
  quantise(rig, &b, nullptr, w);
  Mirror to(rig.stream(), out), ac(rig.stream(), a.codes()), as(rig.stream(), a.scales()), bc(rig.stream(), b.codes()),
      bs(rig.stream(), b.scales());
  rig.ops().fp8_product(rig.stream(), to.tensor(), a.on(ac, as), b.on(bc, bs), Tensor(), Accumulate::overwrite);
  to.fetch();
  for (std::int64_t i = 0; i < n * o; ++i) EXPECT_EQ(std::isfinite(out[i]), i / o != 2) << i;
}

}  // namespace
}  // namespace so::fp8_test
