#include <cmath>

#include "base/normal_draw.h"
#include "support/random_tensors.h"
#include "support/rig.h"

namespace so::test::random_test {
namespace {

// Element by element the function of base/normal_draw.h: in fp32 the logarithm and the sine may be a few units in the
// last place off, and sine and cosine near zero as much in absolute terms.
TEST(RandomNormal, IsTheSameFunctionEverywhere) {
  Rig rig;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const TestTensor out(rig.stream(), dtype, {301});
    rig.ops().random_normal(rig.stream(), out, 7, 0.5f);
    std::vector<double> expected(301);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = 0.5 * normal_draw(mix_counter(7), i);
    expect_close(out.values(rig.stream()), expected, 8 * 0x1p-24 + unit_roundoff(dtype), 6 * 0x1p-23, "draws");
  }
}

TEST(RandomNormal, HasTheMomentsOfANormalDistribution) {
  Rig rig;
  const TestTensor out(rig.stream(), DType::f32, {200000});
  rig.ops().random_normal(rig.stream(), out, 3, 2.0f);
  const std::vector<double> x = out.values(rig.stream());
  double mean = 0, square = 0, fourth = 0;
  for (const double v : x) mean += v, square += v * v, fourth += v * v * v * v;
  const auto n = static_cast<double>(x.size());
  // Five standard errors: sigma / sqrt(n), sigma^2 sqrt(2 / n), sigma^4 sqrt(96 / n).
  EXPECT_NEAR(mean / n, 0, 5 * 2 / std::sqrt(n));
  EXPECT_NEAR(square / n, 4, 5 * 4 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth / n, 48, 5 * 16 * std::sqrt(96 / n));
}

TEST(RandomNormal, SeedsDiffer) {
  Rig rig;
  const TestTensor a(rig.stream(), DType::f32, {1000}), b(rig.stream(), DType::f32, {1000});
  rig.ops().random_normal(rig.stream(), a, 1, 1.0f);
  rig.ops().random_normal(rig.stream(), b, 2, 1.0f);
  const auto x = a.values(rig.stream()), y = b.values(rig.stream());
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NE(x[i], y[i]) << i;
}

}  // namespace
}  // namespace so::test::random_test
