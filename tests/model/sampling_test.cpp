#include "model/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "support/label.h"
#include "support/sanitized.h"

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
  // top_k leaves two, 2/3 and 1/3, of which the first reaches 0.6.
  EXPECT_EQ(draws(logits, {1, 2, 0.6}).size(), 1u);
}

// The definition, with everything sorted.
std::int32_t sorted_sample(const std::vector<float>& logits, const SamplingOptions& options, std::mt19937_64& random) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(ids.begin(), ids.end(), [&](auto a, auto b) { return logit(a) > logit(b); });
  if (options.top_k > 0) ids.resize(std::min(ids.size(), static_cast<std::size_t>(options.top_k)));
  std::vector<double> sums;  // of weights, up to and with each
  for (const std::int32_t id : ids)
    sums.push_back((sums.empty() ? 0 : sums.back()) +
                   std::exp((logit(id) - static_cast<double>(logit(ids.front()))) / options.temperature));
  if (options.top_p < 1)
    sums.erase(std::lower_bound(sums.begin(), sums.end(), options.top_p * sums.back()) + 1, sums.end());
  const double draw = static_cast<double>(random() >> 11) * 0x1p-53 * sums.back();
  return ids[static_cast<std::size_t>(std::upper_bound(sums.begin(), sums.end(), draw) - sums.begin())];
}

// Sums are added up in another order, so a draw that lies within rounding of a boundary might differ; none of these
// does.
SO_LABEL(sweep, "Sampling.DrawsWhatSortingEverythingWould");
TEST(Sampling, DrawsWhatSortingEverythingWould) {
  constexpr std::size_t sizes[] = {1, 2, 7, 64, 65, 1000, 5000};
  std::mt19937_64 values(5);
  for (const std::size_t size : sizes) {
    for (const double grain : {0.0, 0.5}) {  // with the second many are equal
      std::vector<float> logits(size);
      for (float& x : logits) {
        const double u = static_cast<double>(values() >> 11) * 0x1p-53 * 12;
        x = static_cast<float>(grain > 0 ? std::floor(u / grain) * grain : u);
      }
      if (size > 3) logits[size / 3] = -kInf;
      for (const double temperature : {0.3, 1.0, 20.0})
        for (const int top_k : {0, 1, 3, 40, 900})
          for (const double top_p : {1.0, 0.95, 0.5, 0.01}) {
            const SamplingOptions options{temperature, top_k, top_p};
            std::mt19937_64 random(size), same(size);
            for (int i = 0; i < (test::sanitized ? 3 : 20); ++i)
              ASSERT_EQ(sample(logits, options, random), sorted_sample(logits, options, same))
                  << size << " logits, temperature " << temperature << ", top_k " << top_k << ", top_p " << top_p;
          }
    }
  }
}

// Orders that make a careless choice of pivots slow: this would take minutes.
TEST(Sampling, AnyOrderOfALargeVocabulary) {
  constexpr std::int32_t size = 200'000;
  std::vector<float> rising(size), falling(size), equal(size, 1.0f);
  for (std::int32_t i = 0; i < size; ++i) {
    rising[static_cast<std::size_t>(i)] = static_cast<float>(i) * 1e-6f;
    falling[static_cast<std::size_t>(i)] = static_cast<float>(-i) * 1e-6f;
  }
  for (const auto* logits : {&rising, &falling, &equal})
    for (const auto& [id, count] : draws(*logits, {1, 0, 0.9}, 5)) EXPECT_TRUE(id >= 0 && id < size && count > 0);
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
