// The own matrix product, which is that of processors without oneDNN, on whatever processor this is.
#include "ops/cpu/simd_sgemm.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/xxh3.h"
#include "support/instruction_sets.h"

namespace so::simd_sgemm_test {
namespace {

// Numbers between -1 and 1 that every machine makes alike, with all bits of an fp32 in use, so that products and sums
// are rounded.
std::vector<float> numbers(std::int64_t count, std::uint32_t seed) {
  std::vector<float> all;
  for (std::int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    all.push_back(static_cast<float>(static_cast<std::int32_t>(seed)) / 2147483648.0f);
  }
  return all;
}

struct Shape {
  bool a_transposed, b_transposed;
  std::int64_t m, n, k;
};

// Operands whose rows lie further apart than they are long, and C with a mark behind each row.
struct Product {
  static constexpr std::int64_t gap = 3;
  static constexpr float mark = 77;
  Shape s;
  std::int64_t a_stride, b_stride, c_stride;
  std::vector<float> a, b, before, c;

  explicit Product(const Shape& shape)
      : s(shape),
        a_stride((s.a_transposed ? s.m : s.k) + gap),
        b_stride((s.b_transposed ? s.k : s.n) + gap),
        c_stride(s.n + gap),
        a(numbers((s.a_transposed ? s.k : s.m) * a_stride, 1)),
        b(numbers((s.b_transposed ? s.n : s.k) * b_stride, 2)),
        before(numbers(s.m * c_stride, 3)) {
    for (std::int64_t i = 0; i < s.m; ++i)
      for (std::int64_t j = s.n; j < c_stride; ++j) before[static_cast<std::size_t>(i * c_stride + j)] = mark;
  }
  void run(float alpha, float beta) {
    c = before;
    if (beta == 0)  // must not be read
      for (std::int64_t i = 0; i < s.m; ++i)
        std::fill_n(c.begin() + i * c_stride, s.n, std::numeric_limits<float>::quiet_NaN());
    simd_sgemm(s.a_transposed, s.b_transposed, s.m, s.n, s.k, alpha, a.data(), a_stride, b.data(), b_stride, beta,
               c.data(), c_stride);
  }
  float at(const std::vector<float>& of, std::int64_t row, std::int64_t column, std::int64_t stride) const {
    return of[static_cast<std::size_t>(row * stride + column)];
  }
  // Each fp32 addition errs by at most 2^-24 of the running sum. Errors of random sign grow with the root of their
  // number; all k of them in one direction would be the bound that cannot be passed, and this is far below it.
  void expect_right(float alpha, float beta) const {
    for (std::int64_t i = 0; i < s.m; ++i) {
      for (std::int64_t j = 0; j < s.n; ++j) {
        double sum = 0, magnitude = 0;
        for (std::int64_t p = 0; p < s.k; ++p) {
          const double term = static_cast<double>(s.a_transposed ? at(a, p, i, a_stride) : at(a, i, p, a_stride)) *
                              (s.b_transposed ? at(b, j, p, b_stride) : at(b, p, j, b_stride));
          sum += term;
          magnitude += std::abs(term);
        }
        const double old = beta == 0 ? 0 : static_cast<double>(beta) * at(before, i, j, c_stride);
        const double allowed =
            (2 * std::sqrt(static_cast<double>(s.k) + 2) * alpha * magnitude + std::abs(old)) * std::ldexp(1.0, -24);
        ASSERT_NEAR(at(c, i, j, c_stride), alpha * sum + old, allowed) << i << " " << j;
      }
      for (std::int64_t j = s.n; j < c_stride; ++j) ASSERT_EQ(at(c, i, j, c_stride), mark) << i << " " << j;
    }
  }
};

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      all.push_back({ta, tb, 1, 1, 1});
      all.push_back({ta, tb, 3, 50, 37});    // few rows; an inner size that is no multiple of 16
      all.push_back({ta, tb, 5, 13, 0});     // nothing is multiplied
      all.push_back({ta, tb, 17, 61, 259});  // more than a block of the inner dimension, odd edges
    }
  all.push_back({false, true, 200, 490, 20});  // more than a block of rows and of columns
  all.push_back({true, false, 8, 48, 256});    // whole blocks
  return all;
}

TEST(SimdSgemm, IsWithinRoundingOfDoublePrecision) {
  test::for_each_instruction_set([] {
    for (const Shape& shape : shapes())
      for (const auto& [alpha, beta] : {std::pair{1.0f, 0.0f}, {1.0f, 1.0f}, {0.125f, 0.5f}}) {
        SCOPED_TRACE(::testing::Message() << shape.a_transposed << shape.b_transposed << " " << shape.m << " "
                                          << shape.n << " " << shape.k << " alpha " << alpha << " beta " << beta);
        Product product(shape);
        product.run(alpha, beta);
        product.expect_right(alpha, beta);
        if (::testing::Test::HasFatalFailure()) return;
      }
  });
}

// The same on x86-64, NEON and SVE of any length, but for instruction sets without fused multiply-adds.
TEST(SimdSgemm, HasTheBitsOfEveryOtherProcessor) {
  int tried = 0;
  test::for_each_instruction_set([&] {
    const std::string set = hwy::TargetName(hwy::SupportedTargets());
    if (set.starts_with("SS") || set == "SCALAR" || set == "EMU128") return;
    Xxh3Stream hash;
    for (const Shape& shape : shapes()) {
      Product product(shape);
      product.run(0.125f, 0.5f);
      hash.add(std::as_bytes(std::span(product.c)));
    }
    EXPECT_EQ(hash.value(), 0x51d22d90c4261934u) << set;
    ++tried;
  });
  if (tried == 0) GTEST_SKIP() << "this processor has no fused multiply-adds";
}

}  // namespace
}  // namespace so::simd_sgemm_test
