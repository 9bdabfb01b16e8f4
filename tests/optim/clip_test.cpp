// Clipping against PyTorch.
#include "optim/clip.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "support/paths.h"

namespace so {
namespace {

TEST(ClipCoefficient, AgreesWithPyTorch) {
  std::ifstream file(test::fixtures() + "/optim/clip.json");
  const auto fixture = nlohmann::json::parse(file);
  ASSERT_EQ(fixture["cases"].size(), 10u);
  int clipped = 0;
  for (const auto& c : fixture["cases"]) {
    std::vector<float> g;
    double squares = 0;
    for (const auto& x : c["gradient"]) {
      g.push_back(static_cast<float>(x.get<double>()));
      squares += static_cast<double>(g.back()) * g.back();
    }
    const double norm = std::sqrt(squares);
    // PyTorch sums 24 squares and takes the root in fp32, then divides: each of about 30 roundings within 2^-24.
    const double tolerance = 30 * 0x1p-24;
    EXPECT_NEAR(norm, c["norm"].get<double>(), tolerance * norm);
    const float coefficient = clip_coefficient(norm, c["max_norm"]);
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
