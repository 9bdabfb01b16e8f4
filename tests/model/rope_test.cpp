#include "model/rope.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numbers>

namespace so {
namespace {

constexpr double u = 0x1p-24;  // fp32's unit roundoff

enum Band { kept, blended, stretched };

// The published description of Llama 3.1's scaling, in double: short waves stay, long ones are stretched by `factor`,
// and those between go linearly in original_positions / wavelength from one to the other.
std::pair<double, Band> reference_frequency(const RopeSpec& rope, std::int64_t pair) {
  const double plain = std::pow(rope.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(rope.rotary_dim));
  if (rope.scaling == RopeScaling::none) return {plain, kept};
  const double waves = static_cast<double>(rope.original_positions) * plain / (2 * std::numbers::pi);
  if (waves > rope.high_freq_factor) return {plain, kept};
  if (waves < rope.low_freq_factor) return {plain / rope.factor, stretched};
  const double share = (waves - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return {plain * (share + (1 - share) / rope.factor), blended};
}

RopeSpec llama3(double theta, std::int64_t dim, double factor, std::int64_t original) {
  return {.theta = theta,
          .rotary_dim = dim,
          .scaling = RopeScaling::llama3,
          .original_positions = original,
          .factor = factor};
}

TEST(Rope, PlainFrequencies) {
  for (const double theta : {10000.0, 500000.0, 1e6})
    for (const std::int64_t dim : {2, 6, 64, 128}) {
      const RopeSpec rope{.theta = theta, .rotary_dim = dim};
      const std::vector<float> frequencies = rope_frequencies(rope, 8);
      ASSERT_EQ(static_cast<std::int64_t>(frequencies.size()), dim / 2);
      EXPECT_EQ(frequencies[0], 1.0f);
      for (std::int64_t i = 0; i < dim / 2; ++i) {
        const double expected = reference_frequency(rope, i).first;
        // The exponent's rounding, times ln(theta) < 14, and the roundings of the power and the quotient.
        EXPECT_NEAR(frequencies[static_cast<std::size_t>(i)], expected, 17 * u * expected) << theta << " " << i;
      }
    }
}

TEST(Rope, Llama3FrequenciesInAllThreeBands) {
  for (const RopeSpec& rope : {llama3(500000, 128, 8, 8192), llama3(500000, 64, 32, 8192), llama3(500, 8, 8, 32)}) {
    const std::vector<float> frequencies = rope_frequencies(rope, 8);
    std::array<int, 3> used{};
    for (std::int64_t i = 0; i < rope.rotary_dim / 2; ++i) {
      const auto [expected, band] = reference_frequency(rope, i);
      ++used[band];
      // As above; where blended, an error of the share, some u, is magnified by at most factor against the result.
      const double tolerance = (17 + (band == blended ? 8 * rope.factor : 1)) * u * expected;
      EXPECT_NEAR(frequencies[static_cast<std::size_t>(i)], expected, tolerance) << "pair " << i << ", band " << band;
    }
    EXPECT_GT(used[kept], 0);
    EXPECT_GT(used[blended], 0);
    EXPECT_GT(used[stretched], 0);
  }
}

TEST(Rope, TheTableHoldsCosinesThenSinesOfEveryPosition) {
  const RopeSpec rope = llama3(500000, 12, 8, 64);
  const std::vector<float> frequencies = rope_frequencies(rope, 8);
  constexpr std::int64_t positions = 300;
  const std::vector<float> table = rope_table(rope, positions);
  const std::size_t half = frequencies.size();
  ASSERT_EQ(table.size(), positions * 2 * half);
  for (std::size_t p = 0; p < positions; ++p)
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * static_cast<double>(frequencies[i]);
      const double tolerance = u * (angle + 1);  // the angle is rounded once, and so is the result
      EXPECT_NEAR(table[2 * p * half + i], std::cos(angle), tolerance) << p << " " << i;
      EXPECT_NEAR(table[(2 * p + 1) * half + i], std::sin(angle), tolerance) << p << " " << i;
    }
}

TEST(Rope, LinearScalingDividesEveryFrequency) {
  RopeSpec rope{.theta = 1e6, .rotary_dim = 16};
  const std::vector<float> plain = rope_frequencies(rope, 8);
  rope.scaling = RopeScaling::linear;
  rope.factor = 8;
  const std::vector<float> scaled = rope_frequencies(rope, 8);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(scaled[i], plain[i] / 8) << i;
}

// Against the definition in double precision, on both sides of each step; keys keep the table they have without it.
TEST(Rope, QueriesGrowWithTheirPosition) {
  RopeSpec rope{.theta = 1e6, .rotary_dim = 8, .scaling = RopeScaling::yarn, .original_positions = 16, .factor = 16};
  rope.attention_factor = 1.25;
  const std::vector<float> plain = rope_table(rope, 100);
  EXPECT_EQ(rope_table(rope, 100, RotatedHeads::queries), plain);
  rope.query_growth = 0.1;
  EXPECT_EQ(rope_table(rope, 100), plain);
  const std::vector<float> queries = rope_table(rope, 100, RotatedHeads::queries);
  for (std::size_t p = 0; p < 100; ++p) {
    const double scale = 1 + 0.1 * std::log(1 + std::floor(static_cast<double>(p) / 16));
    EXPECT_EQ(scale == 1, p < 16) << p;
    for (std::size_t i = p * 8; i < (p + 1) * 8; ++i) {
      const double expected = plain[i] * scale;
      const double tolerance = p < 16 ? 0 : 8 * u * std::abs(expected);
      EXPECT_NEAR(queries[i], expected, tolerance) << p;
    }
  }
}

TEST(Rope, TheTableOfQueriesIsTheLast) {
  DecoderSpec spec;
  spec.rope = {.theta = 1e6, .rotary_dim = 12, .original_positions = 4, .query_growth = 0.5};
  // The floats before the table that such heads take.
  const auto place = [&](LayerRotation rotation, RotatedHeads heads) {
    std::vector<float> all = rope_table(spec, 20);
    const Tensor tables(all.data(), DType::f32, {std::ssize(all)});
    return rope_table_of(spec, tables, rotation, heads).as<float>() - all.data();
  };
  for (const bool local : {false, true}) {
    if (local) spec.local_rope = RopeSpec{.theta = 1e4, .rotary_dim = 12};
    std::vector<float> expected = rope_table(spec.rope, 20);
    if (local) {
      const std::vector<float> rows = rope_table(*spec.local_rope, 20);
      expected.insert(expected.end(), rows.begin(), rows.end());
    }
    const std::vector<float> queries = rope_table(spec.rope, 20, RotatedHeads::queries);
    expected.insert(expected.end(), queries.begin(), queries.end());
    EXPECT_EQ(rope_table(spec, 20), expected);
    EXPECT_EQ(rope_table_bytes(spec, 20), (local ? 3 : 2) * 20u * 12 * 4);
    EXPECT_EQ(place(LayerRotation::global, RotatedHeads::keys), 0);
    EXPECT_EQ(place(LayerRotation::global, RotatedHeads::queries), (local ? 2 : 1) * 20 * 12);
  }
  for (const RotatedHeads heads : {RotatedHeads::keys, RotatedHeads::queries})
    EXPECT_EQ(place(LayerRotation::local, heads), 20 * 12);
  spec.rope.query_growth = 0;
  EXPECT_EQ(place(LayerRotation::global, RotatedHeads::queries), 0);
}

TEST(Rope, AModelsTablesLieOneBelowTheOther) {
  DecoderSpec spec;
  spec.rope = {.theta = 1e6, .rotary_dim = 12};
  EXPECT_EQ(rope_table(spec, 20), rope_table(spec.rope, 20));
  EXPECT_EQ(rope_table_bytes(spec, 20), 20u * 12 * 4);
  spec.local_rope = RopeSpec{.theta = 1e4, .rotary_dim = 12};
  std::vector<float> expected = rope_table(spec.rope, 20);
  const std::vector<float> local = rope_table(*spec.local_rope, 20);
  expected.insert(expected.end(), local.begin(), local.end());
  EXPECT_EQ(rope_table(spec, 20), expected);
  EXPECT_EQ(rope_table_bytes(spec, 20), 2 * 20u * 12 * 4);
}

TEST(Rope, TablesOfLayersWithOtherHeadsHaveOtherWidths) {
  DecoderSpec spec;
  spec.rope = {.theta = 1e6, .rotary_dim = 24};
  spec.local_rope = RopeSpec{.theta = 1e4, .rotary_dim = 12};
  std::vector<float> all = rope_table(spec, 20);
  EXPECT_EQ(all.size() * sizeof(float), rope_table_bytes(spec, 20));
  const Tensor tables(all.data(), DType::f32, {std::ssize(all)});
  const auto values = [&](LayerRotation rotation) {
    const Tensor table = rope_table_of(spec, tables, rotation, RotatedHeads::keys);
    const auto numbers = table.span<float>();
    return std::vector<float>(numbers.begin(), numbers.end());
  };
  EXPECT_EQ(values(LayerRotation::global), rope_table(spec.rope, 20));
  EXPECT_EQ(values(LayerRotation::local), rope_table(*spec.local_rope, 20));
}

// transformers' "proportional": exponents over the whole head, and the last pairs stay.
TEST(Rope, StillPairsHaveTheFrequencyZero) {
  const RopeSpec turns{.theta = 1e6, .rotary_dim = 32};
  RopeSpec rope = turns;
  rope.still_pairs = 12;
  const std::vector<float> all = rope_frequencies(turns, 10), some = rope_frequencies(rope, 10);
  ASSERT_EQ(some.size(), 16u);
  for (std::size_t i = 0; i < some.size(); ++i) EXPECT_EQ(some[i], i < 4 ? all[i] : 0) << i;
  const std::vector<float> table = rope_table(rope, 10);
  for (std::size_t p = 0; p < 10; ++p)
    for (std::size_t i = 4; i < 16; ++i) {
      EXPECT_EQ(table[2 * p * 16 + i], 1);
      EXPECT_EQ(table[(2 * p + 1) * 16 + i], 0);
    }
}

TEST(Rope, LongRopeHasRowsForShortAndForLongDocuments) {
  DecoderSpec spec;
  spec.rope = {.rotary_dim = 4, .scaling = RopeScaling::longrope, .original_positions = 8};
  spec.rope.short_factor = {1, 1.5};
  spec.rope.long_factor = {2, 4};
  EXPECT_EQ(rope_table(spec, 8), rope_table(spec.rope, 8)) << "no document is longer";
  std::vector<float> expected = rope_table(spec.rope, 8);
  const std::vector<float> longer = rope_table(spec.rope, 20);
  ASSERT_NE(expected, std::vector<float>(longer.begin(), longer.begin() + std::ssize(expected)));
  expected.insert(expected.end(), longer.begin(), longer.end());
  EXPECT_EQ(rope_table(spec, 20), expected);
  EXPECT_EQ(rope_table_bytes(spec, 20), 28u * 4 * 4);
  const RopeRows rows(spec, 20);
  EXPECT_EQ(rows.first(8), 0);
  EXPECT_EQ(rows.first(9), 8);
  // The other layers' table has its rows where these have theirs.
  spec.local_rope = RopeSpec{.rotary_dim = 4};
  const std::vector<float> local = rope_table(*spec.local_rope, 20);
  expected.insert(expected.end(), local.begin(), local.begin() + 8 * 4);
  expected.insert(expected.end(), local.begin(), local.end());
  EXPECT_EQ(rope_table(spec, 20), expected);
}

}  // namespace
}  // namespace so
