#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "optim/engine_ops.h"
#include "support/instruction_sets.h"
#include "support/random_tensors.h"

namespace so::test {
namespace {

GradStats run(DeviceRig& rig, Tensor grad) {
  TestTensor out(rig.stream(), DType::u8, {sizeof(GradStats)});
  const auto ops = make_engine_ops(rig.device());
  const auto bytes = static_cast<std::int64_t>(EngineOps::stats_scratch(grad.size()));
  const TestTensor scratch(rig.stream(), DType::u8, {bytes});
  ops->grad_stats(rig.stream(), static_cast<GradStats*>(out.tensor().data()), grad, scratch);
  GradStats stats;
  const auto raw = out.bytes(rig.stream());
  std::memcpy(&stats, raw.data(), sizeof stats);
  return stats;
}

// The order that the op promises, spelled out: blocks of 4096, 32 lanes, halves; their sums by 1024 lanes, halves.
double sum_in_promised_order(const std::vector<double>& values) {
  std::vector<double> total(1024);
  for (std::size_t begin = 0; begin < values.size(); begin += 4096) {
    double lanes[32] = {};
    for (std::size_t i = begin; i < std::min(values.size(), begin + 4096); ++i)
      lanes[(i - begin) % 32] += values[i] * values[i];
    for (std::size_t half = 16; half > 0; half /= 2)
      for (std::size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    total[begin / 4096 % 1024] += lanes[0];
  }
  for (std::size_t half = 512; half > 0; half /= 2)
    for (std::size_t j = 0; j < half; ++j) total[j] += total[j + half];
  return total[0];
}

// Exactly equal: no instruction set, compiler or number of threads may change the verdict on a step.
TEST(GradStats, SumsInThePromisedOrder) {
  for (const int threads : {1, 2, 3, 5}) {
    DeviceRig rig(threads);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const std::int64_t count : {1, 31, 32, 33, 4095, 4096, 4097, 200003}) {
        const TestTensor grad = random_tensor(rig.stream(), dtype, {count}, 7, 3.0);
        const double expected = sum_in_promised_order(grad.values(rig.stream()));
        for_each_instruction_set([&] {
          const GradStats stats = run(rig, grad);
          EXPECT_EQ(stats.sum_of_squares, expected)
              << count << " of " << name_of(dtype) << ", " << threads << " threads";
          EXPECT_EQ(stats.non_finite, 0u);
        });
      }
    }
  }
}

// A sanity bound on the above: the promised order itself is close to the sum in long double.
TEST(GradStats, IsASumOfSquares) {
  DeviceRig rig;
  const TestTensor grad = random_tensor(rig.stream(), DType::f32, {100, 333}, 8);
  long double expected = 0;
  for (const double v : grad.values(rig.stream())) expected += static_cast<long double>(v) * v;
  // Each addition rounds by 2^-53; no element meets more than 4096/32 + 5 + 9 of them.
  EXPECT_NEAR(run(rig, grad).sum_of_squares, static_cast<double>(expected),
              static_cast<double>(expected) * 142 * 0x1p-53);
}

TEST(GradStats, TheLargestFiniteGradientDoesNotOverflow) {
  DeviceRig rig;
  const double largest = std::numeric_limits<float>::max();
  const TestTensor grad(rig.stream(), DType::f32, {5000}, std::vector<double>(5000, largest));
  const GradStats stats = run(rig, grad);
  EXPECT_EQ(stats.non_finite, 0u);
  EXPECT_NEAR(stats.sum_of_squares / (largest * largest), 5000.0, 5000.0 * 300 * 0x1p-53);
}

TEST(GradStats, TheSmallestGradientIsNotLost) {
  DeviceRig rig;
  const double smallest = std::numeric_limits<float>::denorm_min();
  const TestTensor grad(rig.stream(), DType::f32, {3}, {smallest, 0.0, -smallest});
  EXPECT_EQ(run(rig, grad).sum_of_squares, 2 * smallest * smallest);
}

TEST(GradStats, CountsEveryNonFiniteElement) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const int threads : {1, 3}) {
    DeviceRig rig(threads);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const std::size_t count : {1u, 33u, 5000u, 150001u}) {
        std::vector<double> values = random_values(count, 9);
        std::uint64_t bad = 0;
        const double kinds[] = {inf, -inf, nan};
        for (std::size_t i = 0; i < count; i += 977) values[i] = kinds[bad++ % 3];
        values.back() = nan;
        if ((count - 1) % 977 != 0) ++bad;
        const TestTensor grad(rig.stream(), dtype, {static_cast<std::int64_t>(count)}, values);
        const GradStats stats = run(rig, grad);
        EXPECT_EQ(stats.non_finite, bad);
        EXPECT_FALSE(std::isfinite(stats.sum_of_squares));
      }
    }
  }
}

// More than a launch takes, of very different sizes.
TEST(GradStats, ManyTogetherAreWhatEachIsAlone) {
  constexpr int count = 130;
  DeviceRig rig;
  Stream& stream = rig.stream();
  const auto ops = make_engine_ops(rig.device());
  const TestTensor out(stream, DType::u8, {count * sizeof(GradStats)});
  auto* const stats = static_cast<GradStats*>(out.tensor().data());
  std::vector<TestTensor> gradients;
  gradients.reserve(count);
  std::vector<StatsOf> all;
  std::size_t bytes = 0;
  for (int i = 0; i < count; ++i) {
    std::vector<double> values = random_values(static_cast<std::size_t>(i % 10 == 0 ? i * i * 7 : i), 20);
    if (i % 9 == 8) values.back() = std::numeric_limits<double>::quiet_NaN();
    gradients.push_back(TestTensor(stream, DType::bf16, {std::ssize(values)}, values));
    const Tensor grad = gradients.back();
    all.push_back({stats + i, grad});
    bytes += EngineOps::stats_scratch(grad.size());
  }
  const TestTensor scratch(stream, DType::u8, {static_cast<std::int64_t>(bytes)});
  ops->grad_stats(stream, all, scratch);
  const auto raw = out.bytes(stream);
  for (int i = 0; i < count; ++i) {
    GradStats found;
    std::memcpy(&found, raw.data() + static_cast<std::size_t>(i) * sizeof found, sizeof found);
    const GradStats expected = run(rig, gradients[static_cast<std::size_t>(i)]);
    EXPECT_EQ(found.non_finite, expected.non_finite) << i;
    if (expected.non_finite == 0) {
      EXPECT_EQ(found.sum_of_squares, expected.sum_of_squares) << i;
    }
  }
}

TEST(GradStats, OverwritesTheResultAndTakesNothing) {
  DeviceRig rig;
  const GradStats stats = run(rig, TestTensor(rig.stream(), DType::f32, {0}));
  EXPECT_EQ(stats.sum_of_squares, 0.0);
  EXPECT_EQ(stats.non_finite, 0u);
}

TEST(GradStats, RefusesWhatIsNoGradient) {
  DeviceRig rig;
  GradStats stats;
  TestTensor ids(rig.stream(), DType::i32, {4}), grad(rig.stream(), DType::f32, {4});
  const auto ops = make_engine_ops(rig.device());
  const TestTensor scratch(rig.stream(), DType::u8, {sizeof(GradStats)}), none(rig.stream(), DType::u8, {8});
  EXPECT_THROW(ops->grad_stats(rig.stream(), &stats, ids, scratch), Bug);
  EXPECT_THROW(ops->grad_stats(rig.stream(), nullptr, grad, scratch), Bug);
  EXPECT_THROW(ops->grad_stats(rig.stream(), &stats, grad, none), Bug);
}

}  // namespace
}  // namespace so::test
