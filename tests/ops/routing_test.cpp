#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "ops/routings.h"
#include "support/instruction_sets.h"

namespace so::test::routing_test {
namespace {

using Values = std::vector<double>;

constexpr double kUnit = 0x1p-24;
const double kNaN = std::nan(""), kInfinity = std::numeric_limits<double>::infinity();

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

struct Case {
  std::int64_t tokens, choices, experts;
};
const Case kCases[] = {{1, 1, 4},  {5, 2, 8},     {100, 3, 5},   {64, 8, 33},  {37, 4, 4},
                       {70, 1, 1}, {513, 8, 128}, {2100, 4, 32}, {129, 8, 60}, {40, 32, 1000}};

// Multiples of a half, so that many are equal, or any.
Values random_logits(const Case& c, bool ties, unsigned seed) {
  Values logits = random_values(at(c.tokens * c.experts), seed, 4.0);
  for (double& x : logits) x = ties ? std::round(2 * x) / 2 : static_cast<double>(static_cast<float>(x));
  return logits;
}

Values softmax(const double* x, std::int64_t count) {
  const double largest = *std::max_element(x, x + count);
  Values p(at(count));
  double sum = 0;
  for (std::size_t e = 0; e < p.size(); ++e) sum += p[e] = std::exp(x[e] - largest);
  for (double& share : p) share /= sum;
  return p;
}

std::vector<std::int64_t> largest(const double* x, const Case& c) {
  std::vector<std::int64_t> order(at(c.experts));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return x[a] > x[b]; });
  order.resize(at(c.choices));
  return order;
}

// The weights of one token's pairs.
Values weights_of(const double* x, const std::vector<std::int64_t>& chosen, std::int64_t experts, bool renormalized) {
  const Values p = softmax(x, experts);
  Values w;
  double sum = 0;
  for (const std::int64_t e : chosen) sum += p[at(e)];
  for (const std::int64_t e : chosen) w.push_back(p[at(e)] / (renormalized ? sum : 1.0));
  return w;
}

HostRouting route(const Values& logits, const Case& c, bool renormalized) {
  std::vector<std::int64_t> experts;
  Values by_pair;
  for (std::int64_t n = 0; n < c.tokens; ++n) {
    const double* x = logits.data() + n * c.experts;
    const auto chosen = largest(x, c);
    const Values w = weights_of(x, chosen, c.experts, renormalized);
    experts.insert(experts.end(), chosen.begin(), chosen.end());
    by_pair.insert(by_pair.end(), w.begin(), w.end());
  }
  HostRouting h = HostRouting::of(std::move(experts), c.choices, c.experts);
  for (const std::int64_t p : h.pairs) h.weights.push_back(by_pair[at(p)]);
  return h;
}

Values doubles(const std::vector<std::int64_t>& v) { return Values(v.begin(), v.end()); }

// An exponential is good to 2 units in the last place, and its argument, up to 8, to half a unit: together 12
// roundoffs. A sum and a quotient of such are good to twice that and a few more; a long sum adds one a term and piece.
double weight_error(std::int64_t experts) { return (32 + std::sqrt(static_cast<double>(experts))) * kUnit; }

TEST(Route, AgreesWithDoublePrecision) {
  Rig rig(3);
  Stream& s = rig.stream();
  for_each_instruction_set([&] {
    for (const Case& c : kCases)
      for (const bool ties : {false, true})
        for (const bool renormalized : {false, true}) {
          SCOPED_TRACE(fmt::format("{} of {} experts, {} tokens, ties {}", c.choices, c.experts, c.tokens, ties));
          const Values x = random_logits(c, ties, 1);
          const TestTensor logits(s, DType::f32, {c.tokens, c.experts}, x);
          const RoutingTensors out(s, c.tokens, c.choices, c.experts);
          rig.ops().route(s, out, logits, {.renormalized = renormalized});
          const HostRouting expected = route(x, c, renormalized);
          ASSERT_EQ(out.experts.values(s), doubles(expected.experts));
          ASSERT_EQ(out.offsets.values(s), doubles(expected.offsets));
          ASSERT_EQ(out.rows.values(s), doubles(expected.rows));
          ASSERT_EQ(out.pairs.values(s), doubles(expected.pairs));
          expect_close(out.weights.values(s), expected.weights, weight_error(c.experts), 0, "weights");
        }
  });
}

TEST(Route, AllTokensMayChooseOneExpertAndThereMayBeNone) {
  Rig rig;
  Stream& s = rig.stream();
  for (const std::int64_t tokens : {0, 1, 3000}) {
    Values x(at(tokens * 6));
    for (std::size_t i = 3; i < x.size(); i += 6) x[i] = 1;
    const TestTensor logits(s, DType::f32, {tokens, 6}, x);
    const RoutingTensors out(s, tokens, 1, 6);
    rig.ops().route(s, out, logits, {.renormalized = true});
    const auto all = static_cast<double>(tokens);
    EXPECT_EQ(out.offsets.values(s), (Values{0, 0, 0, 0, all, all, all}));
    EXPECT_EQ(out.weights.values(s), Values(at(tokens), 1.0));
    Values order(at(tokens));
    std::iota(order.begin(), order.end(), 0.0);
    EXPECT_EQ(out.rows.values(s), order);
    EXPECT_EQ(out.pairs.values(s), order);
  }
}

// A NaN is the smallest of all logits, so the choice is always one of distinct experts, and shows in the weights.
TEST(Route, NaNAndInfinityShowInTheWeights) {
  Rig rig;
  Stream& s = rig.stream();
  const Case c{6, 2, 5};
  const Values x = {1,          2,          3,          kNaN,       0,           // not chosen
                    kNaN,       kNaN,       kNaN,       -kInfinity, kNaN,        // chosen second
                    kNaN,       kNaN,       kNaN,       kNaN,       kNaN,        //
                    1,          1,          0,          kInfinity,  -kInfinity,  //
                    -kInfinity, -kInfinity, -kInfinity, -kInfinity, -kInfinity, 5, -kInfinity, 4, 0, 0};
  const Values experts = {2, 1, 3, 0, 0, 1, 3, 0, 0, 1, 0, 2};
  for (const bool renormalized : {false, true}) {
    const TestTensor logits(s, DType::f32, {c.tokens, c.experts}, x);
    const RoutingTensors out(s, c.tokens, c.choices, c.experts);
    rig.ops().route(s, out, logits, {.renormalized = renormalized});
    EXPECT_EQ(out.experts.values(s), experts);
    const Values rows = out.rows.values(s), weights = out.weights.values(s);
    EXPECT_EQ(std::set<double>(rows.begin(), rows.end()).size(), 12u);
    for (std::size_t p = 0; p < rows.size(); ++p)
      EXPECT_EQ(std::isnan(weights[static_cast<std::size_t>(rows[p])]), p < 10) << p;
    // And the gradient is not finite either where a choice is not.
    const TestTensor dlogits(s, DType::f32, {c.tokens, c.experts}), dweights(s, DType::f32, {12}, Values(12, 1.0));
    rig.ops().route_grad(s, dlogits, dweights, out, logits, {.renormalized = renormalized}, {}, 0);
    const Values dx = dlogits.values(s);
    for (std::size_t p = 0; p < rows.size(); ++p)
      EXPECT_EQ(std::isnan(dx[p / 2 * 5 + static_cast<std::size_t>(experts[p])]), p < 10) << p;
  }
}

// The function of one token whose gradient route_grad() is: g.weights + balance.
double token_loss(const double* x, const std::vector<std::int64_t>& chosen, std::int64_t experts, bool renormalized,
                  const Values& g, const Values& counts, double scale) {
  const Values w = weights_of(x, chosen, experts, renormalized);
  double loss = 0;
  for (std::size_t j = 0; j < chosen.size(); ++j) loss += g[j] * w[j];
  if (counts.empty()) return loss;
  const Values p = softmax(x, experts);
  double sum = 0;
  for (std::size_t e = 0; e < p.size(); ++e) sum += counts[e] * p[e];
  return loss + scale * sum;
}

struct GradCase {
  DType dtype;
  bool renormalized, balanced;
};

// The gradient is taken by differences in double, independent of its formula: they are good to 1e-9 here.
void check_grad(Rig& rig, const Case& c, const GradCase& g) {
  Stream& s = rig.stream();
  const double scale = g.balanced ? 0.03 : 0.0, step = 1e-4;
  Values x = random_logits(c, false, 2);
  const HostRouting routing = route(x, c, g.renormalized);
  const RoutingTensors on_device = routing.on_device(s);
  const TestTensor logits(s, DType::f32, {c.tokens, c.experts}, x);
  const TestTensor dweights = random_tensor(s, DType::f32, {c.tokens * c.choices}, 3);
  const TestTensor counts(s, DType::f32, {c.experts}, random_indices(at(c.experts), 4, 100));
  const TestTensor dlogits(s, g.dtype, {c.tokens, c.experts});
  rig.ops().route_grad(s, dlogits, dweights, on_device, logits, {.renormalized = g.renormalized},
                       g.balanced ? counts : Tensor(), static_cast<float>(scale));
  const Values dw = dweights.values(s), count = g.balanced ? counts.values(s) : Values();
  Values slopes(x.size());
  for (std::int64_t n = 0; n < c.tokens; ++n) {
    double* row = x.data() + n * c.experts;
    std::vector<std::int64_t> chosen;
    Values by_choice;
    for (std::int64_t j = 0; j < c.choices; ++j) {
      chosen.push_back(routing.experts[at(n * c.choices + j)]);
      by_choice.push_back(dw[at(routing.rows[at(n * c.choices + j)])]);
    }
    const auto loss = [&] {
      return token_loss(row, chosen, c.experts, g.renormalized, by_choice, count, static_cast<float>(scale));
    };
    for (std::int64_t e = 0; e < c.experts; ++e) {
      const double x0 = row[e];
      row[e] = x0 + step;
      const double more = loss();
      row[e] = x0 - step;
      const double less = loss();
      row[e] = x0;
      slopes[at(n * c.experts + e)] = (more - less) / (2 * step);
    }
  }
  // A dweight is at most 1 and a count times the scale 3: what cancels is no larger than 8.
  expect_close(
      dlogits.values(s), slopes, g.dtype == DType::bf16 ? 0x1p-8 : 0, 8 * weight_error(c.experts) + 1e-8,
      fmt::format("{} of {} experts, renormalized {}, balanced {}", c.choices, c.experts, g.renormalized, g.balanced));
}

TEST(RouteGrad, AgreesWithFiniteDifferences) {
  Rig rig(3);
  const Case cases[] = {{1, 1, 4}, {5, 2, 8}, {40, 3, 5}, {16, 8, 33}, {37, 4, 4}, {12, 8, 128}, {3, 32, 257}};
  for_each_instruction_set([&] {
    for (const Case& c : cases)
      for (const DType dtype : {DType::f32, DType::bf16})
        for (const bool renormalized : {false, true})
          for (const bool balanced : {false, true}) check_grad(rig, c, {dtype, renormalized, balanced});
  });
}

TEST(RouterLoad, CountsRowsAndAddsUpSoftmaxes) {
  Rig rig(3);
  Stream& s = rig.stream();
  for (const Case& c : kCases)
    for (const Accumulate mode : {Accumulate::overwrite, Accumulate::add}) {
      const Values x = random_logits(c, false, 5);
      const HostRouting routing = route(x, c, true);
      const RoutingTensors on_device = routing.on_device(s);
      const TestTensor logits(s, DType::f32, {c.tokens, c.experts}, x);
      const bool add = mode == Accumulate::add;
      const TestTensor counts(s, DType::f32, {c.experts}, Values(at(c.experts), add ? 7.0 : kNaN));
      const TestTensor shares(s, DType::f32, {c.experts}, Values(at(c.experts), add ? 0.5 : kNaN));
      rig.ops().router_load(s, counts, shares, on_device, logits, mode);
      Values expected_counts(at(c.experts), add ? 7.0 : 0.0), expected_shares(at(c.experts), add ? 0.5 : 0.0);
      for (std::int64_t n = 0; n < c.tokens; ++n) {
        const Values p = softmax(x.data() + n * c.experts, c.experts);
        for (std::size_t e = 0; e < p.size(); ++e) expected_shares[e] += p[e];
      }
      for (const std::int64_t e : routing.experts) ++expected_counts[at(e)];
      EXPECT_EQ(counts.values(s), expected_counts);
      // Sums of positive terms over at most 64 rows in fp32, and over at most 64 such sums.
      expect_close(shares.values(s), expected_shares, weight_error(c.experts) + 128 * kUnit, 0, "shares");
    }
}

TEST(RouterLoad, WithoutTokensIsZeroOrAsBefore) {
  Rig rig;
  Stream& s = rig.stream();
  const RoutingTensors routing = random_routing(0, 2, 5, Load::even, 1).on_device(s);
  const TestTensor logits(s, DType::f32, {0, 5});
  const TestTensor counts(s, DType::f32, {5}), shares(s, DType::f32, {5});
  rig.ops().router_load(s, counts, shares, routing, logits, Accumulate::overwrite);
  EXPECT_EQ(counts.values(s), Values(5, 0.0));
  EXPECT_EQ(shares.values(s), Values(5, 0.0));
  const TestTensor more(s, DType::f32, {5}, Values(5, 2.0));
  rig.ops().router_load(s, more, more, routing, logits, Accumulate::add);
  EXPECT_EQ(more.values(s), Values(5, 2.0));
}

TEST(RouteGrad, WithoutTokensDoesNothing) {
  Rig rig;
  Stream& s = rig.stream();
  const RoutingTensors routing = random_routing(0, 2, 5, Load::even, 1).on_device(s);
  const TestTensor logits(s, DType::f32, {0, 5}), dlogits(s, DType::bf16, {0, 5}), dweights(s, DType::f32, {0});
  const TestTensor counts(s, DType::f32, {5}, Values(5, 2.0));
  rig.ops().route_grad(s, dlogits, dweights, routing, logits, {.renormalized = true}, counts, 1);
  EXPECT_EQ(counts.values(s), Values(5, 2.0));
}

TEST(RouterLoss, IsAddedWhereThereIsATarget) {
  Rig rig;
  Stream& s = rig.stream();
  for (const std::int64_t tokens : {0, 1, 1000})
    for (const std::int64_t experts : {1, 32, 200}) {
      const TestTensor losses = random_tensor(s, DType::f32, {tokens}, 1);
      const Values before = losses.values(s);
      const TestTensor counts(s, DType::f32, {experts}, random_indices(at(experts), 2, 5000));
      const TestTensor shares(s, DType::f32, {experts}, random_indices(at(experts), 3, 4000));
      Values target = random_indices(at(tokens), 4, 10);
      for (double& t : target) t -= 3;
      const TestTensor targets(s, DType::i32, {tokens}, target);
      rig.ops().add_router_loss(s, losses, targets, counts, shares, 1e-6f);
      double sum = 0;
      for (std::size_t e = 0; e < at(experts); ++e) sum += counts.values(s)[e] * shares.values(s)[e];
      sum *= static_cast<double>(1e-6f);
      Values expected = before, allowed(before.size());
      for (std::size_t n = 0; n < expected.size(); ++n) {
        if (target[n] >= 0) expected[n] += sum;
        allowed[n] = target[n] >= 0 ? 8 * kUnit * (1 + sum) : 0;
      }
      expect_within(losses.values(s), expected, allowed, fmt::format("{} experts", experts));
    }
}

TEST(Route, SameBitsForAnyNumberOfThreads) {
  SO_CPU_ONLY("threads");
  const Case c{3000, 4, 60};
  std::vector<std::vector<std::byte>> first;
  for (const int threads : {1, 2, 3, 5}) {
    Rig rig(threads);
    Stream& s = rig.stream();
    const TestTensor logits(s, DType::f32, {c.tokens, c.experts}, random_logits(c, false, 1));
    const TestTensor dweights = random_tensor(s, DType::f32, {c.tokens * c.choices}, 2);
    const RoutingTensors routing(s, c.tokens, c.choices, c.experts);
    const TestTensor dlogits(s, DType::f32, {c.tokens, c.experts}), counts(s, DType::f32, {c.experts}),
        shares(s, DType::f32, {c.experts});
    rig.ops().route(s, routing, logits, {.renormalized = false});
    rig.ops().router_load(s, counts, shares, routing, logits, Accumulate::overwrite);
    rig.ops().route_grad(s, dlogits, dweights, routing, logits, {.renormalized = false}, counts, 0.1f);
    const std::vector<std::vector<std::byte>> now = {routing.rows.bytes(s), routing.weights.bytes(s), dlogits.bytes(s),
                                                     counts.bytes(s), shares.bytes(s)};
    if (first.empty()) first = now;
    EXPECT_EQ(first, now) << threads << " threads";
  }
}

TEST(Route, WrongArgumentsAreRefused) {
  Rig rig;
  Stream& s = rig.stream();
  const RoutingTensors routing = random_routing(4, 2, 6, Load::even, 1).on_device(s);
  const TestTensor logits = random_tensor(s, DType::f32, {4, 6}, 1), other = random_tensor(s, DType::f32, {4, 5}, 1);
  const TestTensor rounded(s, DType::bf16, {4, 6}), dweights(s, DType::f32, {8}), counts(s, DType::f32, {6});
  EXPECT_THROW(rig.ops().route(s, routing, other, {.renormalized = true}), Bug);
  EXPECT_THROW(rig.ops().route(s, routing, rounded, {.renormalized = true}), Bug);
  Routing wrong = routing;
  wrong.weights = Tensor();
  EXPECT_THROW(rig.ops().route(s, wrong, logits, {.renormalized = true}), Bug);
  EXPECT_THROW(rig.ops().route(s, RoutingTensors(s, 4, 7, 6), logits, {.renormalized = true}),
               Bug);  // more than there are
  EXPECT_THROW(rig.ops().route(s, RoutingTensors(s, 4, 33, 60), logits, {.renormalized = true}),
               Bug);  // more than kMaxChoices
  EXPECT_THROW(rig.ops().route_grad(s, logits, counts, routing, logits, {.renormalized = true}, {}, 0), Bug);
  EXPECT_THROW(rig.ops().route_grad(s, logits, dweights, routing, logits, {.renormalized = true}, dweights, 0), Bug);
  EXPECT_THROW(rig.ops().router_load(s, counts, dweights, routing, logits, Accumulate::add), Bug);
  EXPECT_THROW(rig.ops().add_router_loss(s, dweights, dweights, counts, counts, 1), Bug);
  EXPECT_THROW(rig.ops().add_router_loss(s, dweights, TestTensor(s, DType::i32, {8}), counts, dweights, 1), Bug);
}

}  // namespace
}  // namespace so::test::routing_test
