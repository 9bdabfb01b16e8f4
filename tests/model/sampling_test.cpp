#include "model/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/error.h"

namespace so {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::map<std::int32_t, int> draws(const std::vector<float>& logits, const SamplingOptions& options, int count = 4000) {
  std::mt19937_64 random(11);
  std::map<std::int32_t, int> seen;
  for (int i = 0; i < count; ++i) ++seen[sample(logits, options, random)];
  return seen;
}

TEST(Sampling, TemperatureZeroTakesTheMostLikelyAndDrawsNothing) {
  std::mt19937_64 random(3), untouched(3);
  EXPECT_EQ(sample(std::vector<float>{1, 3, 2}, {}, random), 1);
  EXPECT_EQ(sample(std::vector<float>{1, 3, 3, 3}, {}, random), 1) << "the lowest id among equals";
  EXPECT_EQ(sample(std::vector<float>{-kInf, -5, -kInf}, {}, random), 1);
  EXPECT_EQ(sample(std::vector<float>{0, -0.0f}, {}, random), 0);
  EXPECT_EQ(random, untouched);
}

TEST(Sampling, FollowsTheProbabilities) {
  // exp(logit / temperature) is proportional to 1, 2, 5.
  const auto seen = draws({0, 2 * std::log(2.0f), 2 * std::log(5.0f), -kInf}, {2.0, 0, 1}, 8000);
  const double expected[] = {1000, 2000, 5000};
  for (int i = 0; i < 3; ++i)
    EXPECT_NEAR(seen.at(i), expected[i], 6 * std::sqrt(expected[i])) << i;  // six standard deviations
  EXPECT_FALSE(seen.contains(3));
}

TEST(Sampling, TinyTemperatureIsGreedy) {
  EXPECT_EQ(draws({1, 1.0001f, 0}, {1e-300, 0, 1}).size(), 1u);
  EXPECT_TRUE(draws({1, 1.0001f, 0}, {1e-300, 0, 1}).contains(1));
}

TEST(Sampling, TopK) {
  const std::vector<float> logits = {0, 2, 1, 2};
  EXPECT_EQ(draws(logits, {1, 1, 1}).size(), 1u);
  EXPECT_TRUE(draws(logits, {1, 1, 1}).contains(1)) << "the lowest id among equals";
  const auto two = draws(logits, {1, 2, 1});
  EXPECT_EQ(two.size(), 2u);
  EXPECT_TRUE(two.contains(1) && two.contains(3));
  EXPECT_EQ(draws(logits, {1, 100, 1}).size(), 4u) << "more than there are is all";
  EXPECT_EQ(draws(logits, {1, 0, 1}).size(), 4u);
}

TEST(Sampling, TopP) {
  // Probabilities 0.5, 0.25, 0.25.
  const std::vector<float> logits = {std::log(2.0f), 0, 0};
  EXPECT_EQ(draws(logits, {1, 0, 0}).size(), 1u) << "at least one";
  EXPECT_EQ(draws(logits, {1, 0, 0.49}).size(), 1u);
  EXPECT_EQ(draws(logits, {1, 0, 0.6}).size(), 2u);
  EXPECT_TRUE(draws(logits, {1, 0, 0.6}).contains(1)) << "the lower id among equals";
  EXPECT_EQ(draws(logits, {1, 0, 0.8}).size(), 3u);
  EXPECT_EQ(draws(logits, {1, 0, 1}).size(), 3u);
  // Of the two that top_k leaves, 2/3 and 1/3, the first reaches 0.6.
  EXPECT_EQ(draws(logits, {1, 2, 0.6}).size(), 1u);
}

TEST(Sampling, RefusesLogitsThatAreNoNumbers) {
  std::mt19937_64 random(1);
  for (const double temperature : {0.0, 1.0}) {
    const SamplingOptions options{temperature, 0, 1};
    EXPECT_THROW(sample(std::vector<float>{1, std::nanf(""), 2}, options, random), std::runtime_error);
    EXPECT_THROW(sample(std::vector<float>{std::nanf("")}, options, random), std::runtime_error);
    EXPECT_THROW(sample(std::vector<float>{-kInf, -kInf}, options, random), std::runtime_error);
    EXPECT_THROW(sample(std::vector<float>{1, kInf}, options, random), std::runtime_error);
  }
}

}  // namespace
}  // namespace so
