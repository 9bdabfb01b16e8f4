// The gradient norm's bits, its non-finite flag, and clipping against PyTorch.
#include "optim/grad_norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cstdint>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/thread_pool.h"

namespace so {
namespace {

// The order of grad_norm.h written out a second time.
template <class T>
double twin(double total, std::span<const T> x) {
  for (std::size_t chunk = 0; chunk < x.size(); chunk += kGradNormChunk) {
    double lane[32] = {};
    for (std::size_t i = chunk; i < std::min(x.size(), chunk + kGradNormChunk); ++i) {
      const double value = static_cast<double>(static_cast<float>(x[i]));
      lane[(i - chunk) % 32] += value * value;
    }
    for (int width = 16; width > 0; width /= 2)
      for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
    total += lane[0];
  }
  return total;
}

std::uint64_t bits(double x) { return std::bit_cast<std::uint64_t>(x); }

std::vector<float> random_gradient(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-20.0f, 10.0f);
  std::vector<float> g(count);
  for (float& x : g) x = normal(random) * std::pow(10.0f, exponent(random));
  return g;
}

std::vector<bf16> to_bf16(const std::vector<float>& g) {
  std::vector<bf16> half;
  for (const float x : g) half.emplace_back(x);
  return half;
}

double sum_of(GradientSpan g) {
  GradNorm norm;
  accumulate_grad_norm(norm, g);
  return norm.sum_of_squares;
}

class GradNormTest : public testing::Test {
 protected:
  ~GradNormTest() override { grad_norm_use_instruction_set(""); }
};

TEST_F(GradNormTest, HasTheBitsOfItsOrderForEveryLengthAndAlignment) {
  std::vector<std::size_t> counts;
  for (std::size_t i = 0; i <= 200; ++i) counts.push_back(i);
  for (const std::size_t i : {4095, 4096, 4097, 8192, 8200, 20'001}) counts.push_back(i);
  const std::vector<float> g = random_gradient(20'100, 1);
  const std::vector<bf16> half = to_bf16(g);
  for (const std::string& set : grad_norm_instruction_sets()) {
    grad_norm_use_instruction_set(set);
    for (const std::size_t count : counts)
      for (std::size_t offset = 0; offset < 8; ++offset) {
        const std::span<const float> x(g.data() + offset, count);
        ASSERT_EQ(bits(sum_of(x)), bits(twin(0.0, x))) << set << " " << count << " " << offset;
        const std::span<const bf16> h(half.data() + offset, count);
        ASSERT_EQ(bits(sum_of(h)), bits(twin(0.0, h))) << set << " " << count << " " << offset;
      }
  }
}

TEST_F(GradNormTest, OrderMatters) {  // or the tests of it above and below could not fail
  std::vector<float> g(5000);
  for (std::size_t i = 0; i < g.size(); ++i) g[i] = 1.0f / static_cast<float>(i + 3);
  const double sum = sum_of(g);
  std::rotate(g.begin(), g.begin() + 1234, g.end());
  EXPECT_NE(sum, sum_of(g));
  EXPECT_NEAR(sum, sum_of(g), 1e-12 * sum);
}

TEST_F(GradNormTest, IsAccurate) {
  const std::vector<float> g = random_gradient(100'000, 3);
  long double exact = 0;
  for (const float x : g) exact += static_cast<long double>(x) * x;
  // At most 128 + 5 + 25 additions follow one another, each within 2^-53.
  EXPECT_NEAR(sum_of(g), static_cast<double>(exact), 160 * 0x1p-53 * static_cast<double>(exact));
}

TEST_F(GradNormTest, HasTheSameBitsForAnyNumberOfThreadsAndForCutsAtChunks) {
  const std::vector<float> g = random_gradient(300'003, 4);
  const std::vector<bf16> half = to_bf16(g);
  GradNorm whole, whole_half;
  whole.sum_of_squares = whole_half.sum_of_squares = 0.1;  // what came before counts too
  accumulate_grad_norm(whole, g);
  accumulate_grad_norm(whole_half, half);
  EXPECT_EQ(bits(whole.sum_of_squares), bits(twin(0.1, std::span<const float>(g))));
  for (int threads = 1; threads <= 5; ++threads) {
    ThreadPool pool("test", std::vector<int>(static_cast<std::size_t>(threads), 0), false);
    GradNorm norm, norm_half;
    norm.sum_of_squares = norm_half.sum_of_squares = 0.1;
    accumulate_grad_norm_parallel(pool, norm, g);
    accumulate_grad_norm_parallel(pool, norm_half, half);
    EXPECT_EQ(bits(norm.sum_of_squares), bits(whole.sum_of_squares)) << threads;
    EXPECT_EQ(bits(norm_half.sum_of_squares), bits(whole_half.sum_of_squares)) << threads;
  }
  GradNorm pieces;
  pieces.sum_of_squares = 0.1;
  const std::span<const float> span(g);
  accumulate_grad_norm(pieces, span.first(3 * kGradNormChunk));
  accumulate_grad_norm(pieces, span.subspan(3 * kGradNormChunk, kGradNormChunk));
  accumulate_grad_norm(pieces, span.subspan(4 * kGradNormChunk));
  EXPECT_EQ(bits(pieces.sum_of_squares), bits(whole.sum_of_squares));
}

TEST_F(GradNormTest, FindsASingleNonFiniteGradientAnywhere) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::string& set : grad_norm_instruction_sets()) {
    grad_norm_use_instruction_set(set);
    std::vector<float> g(4200, 0.5f);
    for (const std::size_t at : {0u, 1u, 31u, 32u, 2047u, 4095u, 4096u, 4199u}) {
      for (const float bad : {inf, -inf, nan}) {
        g[at] = bad;
        GradNorm norm, norm_half;
        accumulate_grad_norm(norm, g);
        accumulate_grad_norm(norm_half, to_bf16(g));
        EXPECT_FALSE(norm.finite()) << set << " " << at << " " << bad;
        EXPECT_FALSE(norm_half.finite()) << set << " " << at << " " << bad;
        g[at] = 0.5f;
      }
    }
    g[5] = inf;
    g[6] = nan;
    GradNorm norm;
    accumulate_grad_norm(norm, g);
    accumulate_grad_norm(norm, std::vector<float>(10, 1.0f));
    EXPECT_FALSE(norm.finite()) << "once bad, always bad";
  }
}

TEST_F(GradNormTest, DoesNotTakeLargeGradientsForNonFiniteOnes) {
  const std::vector<float> g(10'000, FLT_MAX);
  for (const std::string& set : grad_norm_instruction_sets()) {
    grad_norm_use_instruction_set(set);
    GradNorm norm;
    accumulate_grad_norm(norm, g);
    EXPECT_TRUE(norm.finite());
    EXPECT_NEAR(norm.norm() / FLT_MAX, 100.0, 100.0 * 160 * 0x1p-53);  // additions in a row, as above
    GradNorm half;
    accumulate_grad_norm(half, std::vector<bf16>(64, bf16(-3e38f)));
    EXPECT_TRUE(half.finite());
    EXPECT_DOUBLE_EQ(half.norm(), 8.0 * static_cast<double>(static_cast<float>(bf16(3e38f))));  // a power of two
  }
}

TEST_F(GradNormTest, CountsSubnormalGradients) {
  const std::vector<float> g(100, std::numeric_limits<float>::denorm_min());
  for (const std::string& set : grad_norm_instruction_sets()) {
    grad_norm_use_instruction_set(set);
    EXPECT_EQ(sum_of(g), 100 * 0x1p-298) << set;
  }
}

TEST_F(GradNormTest, OfNothingIsZero) {
  GradNorm norm;
  accumulate_grad_norm(norm, std::span<const float>());
  EXPECT_EQ(norm.norm(), 0.0);
  EXPECT_TRUE(norm.finite());
}

TEST_F(GradNormTest, RefusesUnknownInstructionSets) { EXPECT_THROW(grad_norm_use_instruction_set("MMX"), Error); }

TEST(ClipCoefficient, AgreesWithPyTorch) {
  std::ifstream file(SO_FIXTURES "/optim/clip.json");
  const auto fixture = nlohmann::json::parse(file);
  ASSERT_EQ(fixture["cases"].size(), 10u);
  int clipped = 0;
  for (const auto& c : fixture["cases"]) {
    std::vector<float> g;
    for (const auto& x : c["gradient"]) g.push_back(static_cast<float>(x.get<double>()));
    GradNorm norm;
    accumulate_grad_norm(norm, g);
    // PyTorch sums 24 squares and takes the root in fp32, then divides: each of about 30 roundings within 2^-24.
    const double tolerance = 30 * 0x1p-24;
    EXPECT_NEAR(norm.norm(), c["norm"].get<double>(), tolerance * norm.norm());
    const float coefficient = clip_coefficient(norm.norm(), c["max_norm"]);
    clipped += coefficient < 1.0f;
    for (std::size_t i = 0; i < g.size(); ++i)
      EXPECT_NEAR(coefficient * g[i], c["clipped"][i].get<double>(), tolerance * std::abs(coefficient * g[i]));
  }
  EXPECT_GT(clipped, 3);
  EXPECT_LT(clipped, 10);
}

TEST(ClipCoefficient, AtItsEdges) {
  EXPECT_EQ(clip_coefficient(0.0, 1.0), 1.0f);
  EXPECT_EQ(clip_coefficient(0.5, 1.0), 1.0f);
  EXPECT_EQ(clip_coefficient(4.0, 1.0), static_cast<float>(1.0 / (4.0 + 1e-6)));
  EXPECT_EQ(clip_coefficient(100.0, 0.0), 1.0f);
  EXPECT_EQ(clip_coefficient(100.0, -1.0), 1.0f);
  EXPECT_EQ(clip_coefficient(100.0, std::numeric_limits<double>::infinity()), 1.0f);
  EXPECT_GT(clip_coefficient(1e30, 1.0), 0.0f);
  EXPECT_THROW(clip_coefficient(std::numeric_limits<double>::infinity(), 1.0), Bug);
  EXPECT_THROW(clip_coefficient(std::numeric_limits<double>::quiet_NaN(), 1.0), Bug);
  EXPECT_THROW(clip_coefficient(1.0, std::numeric_limits<double>::quiet_NaN()), Bug);
}

}  // namespace
}  // namespace so
