#include <cmath>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "ops/routings.h"
#include "support/instruction_sets.h"

namespace so::test::expert_rows_test {
namespace {

using Values = std::vector<double>;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

struct Case {
  std::int64_t tokens, choices, experts, width;
  Load load;
};
// Widths that are and are not whole 16-byte accesses, and longer than a block's or warp's reach.
const Case kCases[] = {{1, 1, 1, 1, Load::even},        {5, 2, 4, 24, Load::even},    {37, 4, 10, 33, Load::skewed},
                       {300, 8, 128, 72, Load::skewed}, {50, 3, 7, 1000, Load::even}, {700, 2, 6, 40, Load::one_expert},
                       {9, 4, 32, 2880, Load::skewed},  {9, 32, 60, 136, Load::even}, {10, 2, 5, 4099, Load::skewed},
                       {0, 2, 5, 16, Load::even}};

std::string name(const Case& c, DType type) {
  return fmt::format("{} of {} experts, {} tokens of {} {}", c.choices, c.experts, c.tokens, c.width, name_of(type));
}

// fp32 sums of so many terms may be off by this, relative to the sum of magnitudes: the square root of their number in
// roundoffs, with a factor of 4 to spare.
double growth(std::int64_t terms) { return 4 * std::sqrt(static_cast<double>(terms) + 2) * 0x1p-24; }

void for_each_case(const std::function<void(const Case&, DType)>& body) {
  for_each_instruction_set([&] {
    for (const Case& c : kCases)
      for (const DType type : {DType::f32, DType::bf16}) body(c, type);
  });
}

TEST(GatherRows, CopiesEachTokensRowToItsExperts) {
  Rig rig(3);
  Stream& s = rig.stream();
  for (const Case& c : kCases)
    for (const DType type : {DType::f32, DType::bf16}) {
      const HostRouting h = random_routing(c.tokens, c.choices, c.experts, c.load, 1);
      const RoutingTensors routing = h.on_device(s);
      const TestTensor x = random_tensor(s, type, {c.tokens, c.width}, 2);
      const TestTensor out(s, type, {c.tokens * c.choices, c.width});
      rig.ops().gather_rows(s, out, x, routing);
      const Values from = x.values(s);
      Values expected(at(c.tokens * c.choices * c.width));
      for (std::int64_t i = 0; i < c.tokens * c.choices * c.width; ++i)
        expected[at(i)] = from[at(h.token_of_row(i / c.width) * c.width + i % c.width)];
      EXPECT_EQ(out.values(s), expected) << name(c, type);
    }
}

TEST(SumRows, AddsEachTokensRowsWithTheirBiases) {
  Rig rig(3);
  Stream& s = rig.stream();
  for_each_case([&](const Case& c, DType type) {
    for (const bool with_bias : {false, true}) {
      const HostRouting h = random_routing(c.tokens, c.choices, c.experts, c.load, 1);
      const RoutingTensors routing = h.on_device(s);
      const TestTensor y = random_tensor(s, type, {c.tokens * c.choices, c.width}, 2);
      const TestTensor bias = random_tensor(s, type, {c.experts, c.width}, 3), out(s, type, {c.tokens, c.width});
      rig.ops().sum_rows(s, out, y, with_bias ? bias : Tensor(), routing);
      const Values ys = y.values(s), b = bias.values(s);
      Values expected(at(c.tokens * c.width)), allowed(expected.size());
      for (std::int64_t n = 0; n < c.tokens; ++n)
        for (std::int64_t i = 0; i < c.width; ++i) {
          double sum = 0, magnitude = 0;
          for (std::int64_t j = 0; j < c.choices; ++j) {
            const std::int64_t pair = n * c.choices + j, r = h.rows[at(pair)];
            const double term = ys[at(r * c.width + i)];
            const double bias_term = with_bias ? h.weights[at(r)] * b[at(h.experts[at(pair)] * c.width + i)] : 0;
            sum += term + bias_term;
            magnitude += std::abs(term) + std::abs(bias_term);
          }
          expected[at(n * c.width + i)] = sum;
          allowed[at(n * c.width + i)] = growth(2 * c.choices) * magnitude + unit_roundoff(type) * std::abs(sum);
        }
      expect_within(out.values(s), expected, allowed, name(c, type));
    }
  });
}

// The sum of gathered rows is the transpose of gathering: <gather(x), y> = <x, sum(y)>.
TEST(SumRows, IsTheGradientOfGathering) {
  Rig rig;
  Stream& s = rig.stream();
  const HostRouting h = random_routing(50, 4, 9, Load::skewed, 1);
  const RoutingTensors routing = h.on_device(s);
  const TestTensor x = random_tensor(s, DType::f32, {50, 20}, 2), y = random_tensor(s, DType::f32, {200, 20}, 3);
  const TestTensor gathered(s, DType::f32, {200, 20}), sum(s, DType::f32, {50, 20});
  rig.ops().gather_rows(s, gathered, x, routing);
  rig.ops().sum_rows(s, sum, y, {}, routing);
  const auto dot = [&](const TestTensor& a, const TestTensor& b) {
    const Values u = a.values(s), v = b.values(s);
    return std::inner_product(u.begin(), u.end(), v.begin(), 0.0);
  };
  EXPECT_NE(dot(x, sum), 0.0);
  EXPECT_NEAR(dot(gathered, y), dot(x, sum), 4000 * growth(4));
}

TEST(ExpertBiasGrad, AddsUpTheRowsOfEachExpert) {
  Rig rig(3);
  Stream& s = rig.stream();
  for_each_case([&](const Case& c, DType type) {
    for (const DType sum_type : {DType::f32, type})
      for (const bool weighted : {false, true})
        for (const Accumulate mode : {Accumulate::overwrite, Accumulate::add}) {
          const HostRouting h = random_routing(c.tokens, c.choices, c.experts, c.load, 1);
          const RoutingTensors routing = h.on_device(s);
          const std::int64_t rows = c.tokens * c.choices;
          const TestTensor dy = random_tensor(s, type, {rows, c.width}, 2);
          const TestTensor dbias = random_tensor(s, sum_type, {c.experts, c.width}, 3);
          const Values d = dy.values(s);
          Values expected = dbias.values(s), magnitude(expected.size()), allowed(expected.size());
          if (mode == Accumulate::overwrite) expected.assign(expected.size(), 0.0);
          rig.ops().expert_bias_grad(s, dbias, dy, routing, weighted, mode);
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t i = 0; i < c.width; ++i) {
              const std::size_t to = at(h.expert_of_row(r) * c.width + i);
              const double term = (weighted ? h.weights[at(r)] : 1.0) * d[at(r * c.width + i)];
              expected[to] += term;
              magnitude[to] += std::abs(term);
            }
          for (std::size_t i = 0; i < expected.size(); ++i)
            allowed[i] = growth(rows) * (magnitude[i] + std::abs(expected[i])) +
                         (sum_type == DType::bf16 ? unit_roundoff(sum_type) * std::abs(expected[i]) : 0);
          expect_within(dbias.values(s), expected, allowed, name(c, type));
        }
  });
}

TEST(ExpertBiasDot, IsTheBiasesPartOfTheWeightsGradient) {
  Rig rig(3);
  Stream& s = rig.stream();
  for_each_case([&](const Case& c, DType type) {
    const HostRouting h = random_routing(c.tokens, c.choices, c.experts, c.load, 1);
    const RoutingTensors routing = h.on_device(s);
    const TestTensor dout = random_tensor(s, type, {c.tokens, c.width}, 2);
    const TestTensor bias = random_tensor(s, type, {c.experts, c.width}, 3);
    const TestTensor dweights(s, DType::f32, {c.tokens * c.choices});
    rig.ops().expert_bias_dot(s, dweights, dout, bias, routing);
    const Values d = dout.values(s), b = bias.values(s);
    Values expected(h.pairs.size()), allowed(expected.size());
    for (std::int64_t r = 0; r < c.tokens * c.choices; ++r) {
      double magnitude = 0;
      for (std::int64_t i = 0; i < c.width; ++i) {
        const double term = d[at(h.token_of_row(r) * c.width + i)] * b[at(h.expert_of_row(r) * c.width + i)];
        expected[at(r)] += term;
        magnitude += std::abs(term);
      }
      allowed[at(r)] = growth(c.width) * magnitude;
    }
    expect_within(dweights.values(s), expected, allowed, name(c, type));
  });
}

// Both halves of sum_rows()'s bias, by differences of its forward pass: sum_rows() is linear in biases and weights, so
// a step of 1 has no error but rounding.
TEST(ExpertBiasDot, AndBiasGradAgreeWithDifferencesOfSumRows) {
  Rig rig;
  Stream& s = rig.stream();
  HostRouting h = random_routing(12, 3, 5, Load::skewed, 1);
  const TestTensor y = random_tensor(s, DType::f32, {36, 10}, 2), dout = random_tensor(s, DType::f32, {12, 10}, 3);
  const Values bias = random_values(50, 4), d = dout.values(s);
  const auto loss = [&](const Values& b) {
    const RoutingTensors routing = h.on_device(s);
    const TestTensor biases(s, DType::f32, {5, 10}, b), out(s, DType::f32, {12, 10});
    rig.ops().sum_rows(s, out, y, biases, routing);
    const Values o = out.values(s);
    return std::inner_product(o.begin(), o.end(), d.begin(), 0.0);
  };
  const RoutingTensors routing = h.on_device(s);
  const TestTensor biases(s, DType::f32, {5, 10}, bias), dweights(s, DType::f32, {36}), dbias(s, DType::f32, {5, 10});
  const TestTensor gathered(s, DType::f32, {36, 10});
  rig.ops().expert_bias_dot(s, dweights, dout, biases, routing);
  rig.ops().gather_rows(s, gathered, dout, routing);
  rig.ops().expert_bias_grad(s, dbias, gathered, routing, true, Accumulate::overwrite);
  const double start = loss(bias), allowed = 120 * 4 * growth(6);  // 120 terms of up to 4
  Values by_weight(36), by_bias(50);
  for (std::size_t r = 0; r < by_weight.size(); ++r) {
    h.weights[r] += 1;
    by_weight[r] = loss(bias) - start;
    h.weights[r] -= 1;
  }
  for (std::size_t i = 0; i < by_bias.size(); ++i) {
    Values moved = bias;
    moved[i] += 1;
    by_bias[i] = loss(moved) - start;
  }
  expect_close(dweights.values(s), by_weight, 0, allowed, "weights");
  expect_close(dbias.values(s), by_bias, 0, allowed, "biases");
}

TEST(ExpertRows, SameBitsForAnyNumberOfThreads) {
  SO_CPU_ONLY("threads");
  std::vector<std::vector<std::byte>> first;
  for (const int threads : {1, 2, 3, 5}) {
    Rig rig(threads);
    Stream& s = rig.stream();
    const RoutingTensors routing = random_routing(500, 4, 7, Load::skewed, 1).on_device(s);
    const TestTensor y = random_tensor(s, DType::bf16, {2000, 600}, 2), out(s, DType::bf16, {500, 600});
    const TestTensor bias = random_tensor(s, DType::bf16, {7, 600}, 3), dbias(s, DType::f32, {7, 600});
    const TestTensor dweights(s, DType::f32, {2000}), gathered(s, DType::bf16, {2000, 600});
    rig.ops().sum_rows(s, out, y, bias, routing);
    rig.ops().gather_rows(s, gathered, out, routing);
    rig.ops().expert_bias_grad(s, dbias, y, routing, true, Accumulate::overwrite);
    rig.ops().expert_bias_dot(s, dweights, out, bias, routing);
    const std::vector<std::vector<std::byte>> now = {out.bytes(s), gathered.bytes(s), dbias.bytes(s),
                                                     dweights.bytes(s)};
    if (first.empty()) first = now;
    EXPECT_EQ(first, now) << threads << " threads";
  }
}

TEST(ExpertRows, WrongArgumentsAreRefused) {
  Rig rig;
  Stream& s = rig.stream();
  const RoutingTensors routing = random_routing(4, 2, 6, Load::even, 1).on_device(s);
  const TestTensor x(s, DType::bf16, {4, 10}), y(s, DType::bf16, {8, 10}), narrow(s, DType::bf16, {8, 9});
  const TestTensor other(s, DType::f32, {8, 10}), dweights(s, DType::f32, {8}), bias(s, DType::bf16, {6, 10});
  Ops& ops = rig.ops();
  EXPECT_THROW(ops.gather_rows(s, x, y, routing), Bug);
  EXPECT_THROW(ops.gather_rows(s, narrow, x, routing), Bug);
  EXPECT_THROW(ops.gather_rows(s, other, x, routing), Bug);
  EXPECT_THROW(ops.sum_rows(s, x, narrow, {}, routing), Bug);
  EXPECT_THROW(ops.sum_rows(s, x, y, x, routing), Bug);
  EXPECT_THROW(ops.expert_bias_grad(s, bias, x, routing, false, Accumulate::add), Bug);
  EXPECT_THROW(ops.expert_bias_grad(s, x, y, routing, false, Accumulate::add), Bug);
  EXPECT_THROW(ops.expert_bias_dot(s, dweights, y, bias, routing), Bug);
  EXPECT_THROW(ops.expert_bias_dot(s, dweights, x, Tensor(), routing), Bug);
}

}  // namespace
}  // namespace so::test::expert_rows_test
