#include "model/initialize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "model/parameters.h"

namespace so {
namespace {

constexpr std::int64_t rows = 512, columns = 513;
constexpr double count = rows * columns;

DecoderSpec spec_with(double range) {
  DecoderSpec spec;
  spec.initializer_range = range;
  return spec;
}

std::vector<float> whole(const Parameter& parameter, std::uint64_t seed, double range = 0.02) {
  std::vector<float> values(static_cast<std::size_t>(parameter.size()));
  initialize(spec_with(range), parameter, seed, 0, values);
  return values;
}

const Parameter matrix{"model.layers.0.mlp.up_proj.weight", {rows, columns}};

// Mean of f(i) over the elements. The seeds are fixed, so a bound of five standard deviations holds or does not,
// always.
template <class F>
double mean(F f) {
  double sum = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) sum += f(i);
  return sum / count;
}

TEST(Initialize, MatricesAreNormal) {
  for (const double range : {0.02, 1.5}) {
    const std::vector<float> x = whole(matrix, 1, range);
    const auto z = [&](std::size_t i) { return static_cast<double>(x[i]) / range; };
    // Standard deviations of these means for a standard normal: 1, sqrt(2), sqrt(15), sqrt(96), over sqrt(count).
    const double five = 5 / std::sqrt(count);
    EXPECT_NEAR(mean([&](std::size_t i) { return z(i); }), 0, five);
    EXPECT_NEAR(mean([&](std::size_t i) { return z(i) * z(i); }), 1, five * std::sqrt(2));
    EXPECT_NEAR(mean([&](std::size_t i) { return std::pow(z(i), 3); }), 0, five * std::sqrt(15));
    EXPECT_NEAR(mean([&](std::size_t i) { return std::pow(z(i), 4); }), 3, five * std::sqrt(96));
    // Shares of a normal distribution beyond one and three deviations.
    for (const double beyond : {1.0, 3.0}) {
      const double share = std::erfc(beyond / std::sqrt(2));
      EXPECT_NEAR(mean([&](std::size_t i) { return std::abs(z(i)) > beyond ? 1 : 0; }), share,
                  five * std::sqrt(share * (1 - share)));
    }
  }
}

// A norm multiplies by 1, whatever is added to its stored weight.
TEST(Initialize, NormsMultiplyByOne) {
  const Parameter norm{"model.norm.weight", {7}};
  for (const float offset : {0.0f, 1.0f}) {
    DecoderSpec spec;
    spec.norm_offset = offset;
    std::vector<float> values(7);
    initialize(spec, norm, 1, 0, values);
    for (const float x : values) EXPECT_EQ(x + offset, 1);
  }
}

// As transformers: a delta layer's A is even between 0.01 and 16, dt_bias 1, and its norm is stored around 1 where
// others are around 0.
TEST(Initialize, DeltaLayers) {
  DecoderSpec spec;
  spec.norm_offset = 1;
  const auto values = [&](const char* name, std::int64_t size, std::uint64_t seed, std::int64_t begin = 0) {
    std::vector<float> x(static_cast<std::size_t>(size - begin));
    initialize(spec, {name, {size}}, seed, begin, x);
    return x;
  };
  constexpr std::int64_t heads = 40000;
  const std::vector<float> a_log = values("model.layers.0.linear_attn.A_log", heads, 1);
  double sum = 0;
  for (const float x : a_log) {
    const double a = std::exp(static_cast<double>(x));
    EXPECT_TRUE(a > 0.00999 && a < 16.001) << a;
    sum += a;
  }
  EXPECT_NEAR(sum / heads, 8.005, 5 * 15.99 / std::sqrt(12.0 * heads));
  EXPECT_LT(*std::min_element(a_log.begin(), a_log.end()), std::log(0.02));
  EXPECT_EQ(values("model.layers.0.linear_attn.A_log", heads, 1, 7),
            std::vector<float>(a_log.begin() + 7, a_log.end()));
  EXPECT_NE(values("model.layers.0.linear_attn.A_log", heads, 2), a_log);
  EXPECT_NE(values("model.layers.1.linear_attn.A_log", heads, 1), a_log);
  EXPECT_EQ(values("model.layers.0.linear_attn.dt_bias", 3, 1), std::vector<float>(3, 1));
  EXPECT_EQ(values("model.layers.0.linear_attn.norm.weight", 3, 1), std::vector<float>(3, 1));
  EXPECT_EQ(values("model.layers.0.input_layernorm.weight", 3, 1), std::vector<float>(3, 0));
  EXPECT_EQ(values("model.layers.0.self_attn.q_norm.weight", 3, 1), std::vector<float>(3, 0));
  EXPECT_TRUE(drawn({"model.layers.0.linear_attn.conv1d.weight", {12, 1, 4}}));
}

double correlation(const std::vector<float>& a, const std::vector<float>& b, std::size_t lag) {
  const auto n = static_cast<std::size_t>(count);
  return mean([&](std::size_t i) { return static_cast<double>(a[i]) * b[(i + lag) % n]; }) / (0.02 * 0.02);
}

TEST(Initialize, ElementsParametersAndSeedsAreIndependent) {
  const double five = 5 / std::sqrt(count);
  const std::vector<float> x = whole(matrix, 1);
  for (const std::size_t lag : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{columns}})
    EXPECT_NEAR(correlation(x, x, lag), 0, five) << "lag " << lag;
  Parameter other = matrix;
  for (const char* name : {"model.layers.1.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight", "a", ""}) {
    other.name = name;
    EXPECT_NEAR(correlation(x, whole(other, 1), 0), 0, five) << name;
  }
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{2}, std::uint64_t{1} << 63})
    EXPECT_NEAR(correlation(x, whole(matrix, seed), 0), 0, five) << "seed " << seed;
}

TEST(Initialize, AnyPieceIsThatPieceOfTheWhole) {
  const std::vector<float> x = whole(matrix, 7);
  EXPECT_EQ(whole(matrix, 7), x);
  // Pairs of elements share a draw: pieces that begin and end inside a pair, of one element, and of none.
  for (const auto& [begin, size] : {std::pair<std::size_t, std::size_t>{0, 1},
                                    {1, 1},
                                    {1, 6},
                                    {2, 5},
                                    {101, 1000},
                                    {x.size() - 1, 1},
                                    {x.size(), 0}}) {
    std::vector<float> piece(size);
    initialize(spec_with(0.02), matrix, 7, static_cast<std::int64_t>(begin), piece);
    EXPECT_TRUE(std::equal(piece.begin(), piece.end(), x.begin() + static_cast<std::ptrdiff_t>(begin)))
        << "[" << begin << ", +" << size << ")";
  }
}

// transformers' initialisation of these families: norm weights 1, biases 0.
TEST(Initialize, NormsAndBiases) {
  DecoderSpec spec;
  spec.architecture = "Qwen3ForCausalLM";
  spec.vocab = 10, spec.hidden = 4, spec.layers = 1, spec.heads = 2, spec.kv_heads = 1, spec.head_dim = 6;
  spec.intermediate = 5;
  spec.qk_norm = spec.qkv_bias = spec.o_bias = spec.mlp_bias = true;
  int norms = 0, biases = 0, matrices = 0;
  for (const Parameter& p : make_parameters(spec)) {
    const std::vector<float> x = whole(p, 3);
    if (p.name.ends_with("norm.weight")) {
      EXPECT_EQ(x, std::vector<float>(x.size(), 1.0f)) << p.name;
      ++norms;
    } else if (p.name.ends_with(".bias")) {
      EXPECT_EQ(x, std::vector<float>(x.size(), 0.0f)) << p.name;
      ++biases;
    } else {
      for (const float value : x) EXPECT_TRUE(value != 0 && std::abs(value) < 6 * 0.02) << p.name;
      ++matrices;
    }
  }
  EXPECT_EQ(norms, 5);
  EXPECT_EQ(biases, 7);
  EXPECT_EQ(matrices, 9);
}

}  // namespace
}  // namespace so
