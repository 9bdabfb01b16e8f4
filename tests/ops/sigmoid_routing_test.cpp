// Routing by sigmoids: chosen with a bias, weighed without.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "ops/routings.h"
#include "support/instruction_sets.h"

namespace so::test::sigmoid_routing_test {
namespace {

using Values = std::vector<double>;

constexpr double kUnit = 0x1p-24;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

struct Case {
  std::int64_t tokens, choices, experts;
};
const Case kCases[] = {{1, 1, 4}, {70, 3, 5}, {64, 8, 33}, {300, 4, 64}, {129, 8, 128}, {20, 32, 1000}};

Values as_floats(Values values) {
  for (double& x : values) x = static_cast<double>(static_cast<float>(x));
  return values;
}
Values random_logits(const Case& c) { return as_floats(random_values(at(c.tokens * c.experts), 1, 4.0)); }
// Of the size of the scores, so that they turn choices.
Values random_bias(const Case& c) { return as_floats(random_values(at(c.experts), 2, 0.5)); }

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

Values weights_of(const double* x, const std::vector<std::int64_t>& chosen, bool renormalized, double scale) {
  double sum = renormalized ? 1e-20 : 0;
  for (const std::int64_t e : chosen) sum += renormalized ? sigmoid(x[e]) : 0;
  Values w;
  for (const std::int64_t e : chosen) w.push_back(scale * sigmoid(x[e]) / (renormalized ? sum : 1.0));
  return w;
}

// What chooses, as fp32 has it to a few roundoffs.
std::vector<double> sums_of(const double* x, const Values& bias, std::int64_t experts) {
  Values sums(at(experts));
  for (std::size_t e = 0; e < sums.size(); ++e) sums[e] = sigmoid(x[e]) + (bias.empty() ? 0.0 : bias[e]);
  return sums;
}

TEST(SigmoidRoute, ChoosesWithTheBiasAndWeighsWithout) {
  Rig rig(3);
  Stream& s = rig.stream();
  const auto scale = static_cast<double>(1.8f);
  for_each_instruction_set([&] {
    for (const Case& c : kCases)
      for (const bool biased : {false, true})
        for (const bool renormalized : {false, true}) {
          SCOPED_TRACE(
              fmt::format("{} of {} experts, biased {}, renormalized {}", c.choices, c.experts, biased, renormalized));
          const Values x = random_logits(c), bias = biased ? random_bias(c) : Values();
          const TestTensor logits(s, DType::f32, {c.tokens, c.experts}, x),
              on_device(s, DType::f32, {c.experts}, biased ? bias : Values(at(c.experts)));
          const RoutingTensors out(s, c.tokens, c.choices, c.experts);
          rig.ops().route(s, out, logits,
                          {.scores = RouterRule::Scores::sigmoid,
                           .renormalized = renormalized,
                           .scale = 1.8f,
                           .selection_bias = biased ? Tensor(on_device) : Tensor()});
          const Values experts = out.experts.values(s), rows = out.rows.values(s), weights = out.weights.values(s);
          for (std::int64_t n = 0; n < c.tokens; ++n) {
            const double* row = x.data() + n * c.experts;
            const Values sums = sums_of(row, bias, c.experts);
            std::vector<std::int64_t> chosen;
            std::vector<bool> is_chosen(at(c.experts));
            for (std::int64_t j = 0; j < c.choices; ++j) {
              chosen.push_back(static_cast<std::int64_t>(experts[at(n * c.choices + j)]));
              ASSERT_FALSE(is_chosen[at(chosen.back())]);
              is_chosen[at(chosen.back())] = true;
            }
            // No expert that was left is better than one that was chosen, but for rounding.
            double worst = 10, best = -10;
            for (std::size_t e = 0; e < sums.size(); ++e)
              is_chosen[e] ? worst = std::min(worst, sums[e]) : best = std::max(best, sums[e]);
            ASSERT_GE(worst, best - 8 * kUnit);
            for (std::size_t j = 1; j < chosen.size(); ++j)
              ASSERT_GE(sums[at(chosen[j - 1])], sums[at(chosen[j])] - 8 * kUnit);
            const Values w = weights_of(row, chosen, renormalized, scale);
            for (std::size_t j = 0; j < w.size(); ++j)
              ASSERT_NEAR(weights[at(static_cast<std::int64_t>(rows[at(n * c.choices) + j]))], w[j], 64 * kUnit * w[j]);
          }
        }
  });
}

TEST(SigmoidRoute, EqualScoresTakeTheLowerExpertAndNaNShows) {
  Rig rig;
  Stream& s = rig.stream();
  const Values x = {3,
                    3,
                    3,
                    3,  //
                    100,
                    -200,
                    1,
                    200,  // sigmoids of 1 and 0
                    std::nan(""),
                    0,
                    1,
                    2};
  const TestTensor logits(s, DType::f32, {3, 4}, x), bias(s, DType::f32, {4}, {0, 0, 0.25, 0});
  for (const bool renormalized : {false, true}) {
    const RouterRule rule{
        .scores = RouterRule::Scores::sigmoid, .renormalized = renormalized, .scale = 1, .selection_bias = bias};
    const RoutingTensors out(s, 3, 2, 4);
    rig.ops().route(s, out, logits, rule);
    EXPECT_EQ(out.experts.values(s), (Values{2, 0, 0, 3, 2, 3}));
    const Values rows = out.rows.values(s), weights = out.weights.values(s);
    for (std::size_t p = 0; p < rows.size(); ++p)
      EXPECT_EQ(std::isnan(weights[static_cast<std::size_t>(rows[p])]), p >= 4) << p;
  }
  // Without any score there is no division by 0.
  const TestTensor none(s, DType::f32, {1, 2}, {-200, -200});
  const RoutingTensors out(s, 1, 2, 2);
  rig.ops().route(s, out, none, {.scores = RouterRule::Scores::sigmoid, .renormalized = true});
  EXPECT_EQ(out.weights.values(s), (Values{0, 0}));
}

// The gradient is taken by differences in double, independent of its formula: they are good to 1e-9 here.
void check_grad(Rig& rig, const Case& c, DType dtype, bool renormalized) {
  Stream& s = rig.stream();
  const double step = 1e-4;
  Values x = random_logits(c);
  const TestTensor logits(s, DType::f32, {c.tokens, c.experts}, x), bias(s, DType::f32, {c.experts}, random_bias(c));
  const TestTensor dweights = random_tensor(s, DType::f32, {c.tokens * c.choices}, 3);
  const TestTensor dlogits(s, dtype, {c.tokens, c.experts});
  const RouterRule rule{
      .scores = RouterRule::Scores::sigmoid, .renormalized = renormalized, .scale = 1.8f, .selection_bias = bias};
  const RoutingTensors routing(s, c.tokens, c.choices, c.experts);
  rig.ops().route(s, routing, logits, rule);
  rig.ops().route_grad(s, dlogits, dweights, routing, logits, rule, {}, 0);
  const Values experts = routing.experts.values(s), rows = routing.rows.values(s), dw = dweights.values(s);
  Values slopes(x.size());
  for (std::int64_t n = 0; n < c.tokens; ++n) {
    double* row = x.data() + n * c.experts;
    std::vector<std::int64_t> chosen;
    for (std::int64_t j = 0; j < c.choices; ++j)
      chosen.push_back(static_cast<std::int64_t>(experts[at(n * c.choices + j)]));
    const auto loss = [&] {
      const Values w = weights_of(row, chosen, renormalized, static_cast<double>(1.8f));
      double sum = 0;
      for (std::size_t j = 0; j < w.size(); ++j)
        sum += w[j] * dw[at(static_cast<std::int64_t>(rows[at(n * c.choices) + j]))];
      return sum;
    };
    for (const std::int64_t e : chosen) {
      const double x0 = row[e];
      row[e] = x0 + step;
      const double more = loss();
      row[e] = x0 - step;
      slopes[at(n * c.experts + e)] = (more - loss()) / (2 * step);
      row[e] = x0;
    }
  }
  // A dweight is at most 1 and a weight 1.8: a few terms of that size cancel.
  expect_close(dlogits.values(s), slopes, dtype == DType::bf16 ? 0x1p-8 : 0, 256 * kUnit + 1e-8,
               fmt::format("{} of {} experts, renormalized {}", c.choices, c.experts, renormalized));
}

TEST(SigmoidRouteGrad, AgreesWithFiniteDifferences) {
  Rig rig(3);
  const Case cases[] = {{1, 1, 4}, {40, 3, 5}, {16, 8, 33}, {12, 8, 128}, {3, 32, 257}};
  for (const Case& c : cases)
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool renormalized : {false, true}) check_grad(rig, c, dtype, renormalized);
}

// With softmax the scale multiplies weights and gradients alike; a power of two changes no other bit.
TEST(Route, AScaleOfTwoDoublesSoftmaxWeightsAndGradients) {
  Rig rig(2);
  Stream& s = rig.stream();
  const Case c{100, 3, 9};
  const TestTensor logits(s, DType::f32, {c.tokens, c.experts}, random_logits(c));
  const TestTensor dweights = random_tensor(s, DType::f32, {c.tokens * c.choices}, 3);
  for (const bool renormalized : {false, true}) {
    std::vector<Values> weights, gradients;
    for (const float scale : {1.0f, 2.0f}) {
      const RouterRule rule{.renormalized = renormalized, .scale = scale};
      const RoutingTensors routing(s, c.tokens, c.choices, c.experts);
      const TestTensor dlogits(s, DType::f32, {c.tokens, c.experts});
      rig.ops().route(s, routing, logits, rule);
      rig.ops().route_grad(s, dlogits, dweights, routing, logits, rule, {}, 0);
      weights.push_back(routing.weights.values(s));
      gradients.push_back(dlogits.values(s));
    }
    for (auto* both : {&weights, &gradients}) {
      for (double& value : both->front()) value *= 2;
      EXPECT_EQ(both->front(), both->back());
    }
  }
}

TEST(SigmoidRoute, WrongArgumentsAreRefused) {
  Rig rig;
  Stream& s = rig.stream();
  const RoutingTensors routing = random_routing(4, 2, 6, Load::even, 1).on_device(s);
  const TestTensor logits = random_tensor(s, DType::f32, {4, 6}, 1), bias(s, DType::f32, {6}),
                   fewer(s, DType::f32, {5});
  const TestTensor dweights(s, DType::f32, {8}), dlogits(s, DType::f32, {4, 6});
  const auto sigmoid = RouterRule::Scores::sigmoid;
  EXPECT_THROW(rig.ops().route(s, routing, logits, {.selection_bias = bias}), Bug);  // with softmax
  EXPECT_THROW(rig.ops().route(s, routing, logits, {.scores = sigmoid, .selection_bias = fewer}), Bug);
  EXPECT_THROW(rig.ops().route_grad(s, dlogits, dweights, routing, logits, {.scores = sigmoid}, bias, 1), Bug);
}

}  // namespace
}  // namespace so::test::sigmoid_routing_test
