#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "base/error.h"
#include "ops/routings.h"
#include "support/instruction_sets.h"

namespace so::test::expert_activation_test {
namespace {

using Values = std::vector<double>;
using Kind = ExpertActivation::Kind;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

constexpr ExpertActivation kSwiglu{Kind::swiglu, 0}, kGeglu{Kind::geglu, 0}, kClamped{Kind::clamped, 1.5f};

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double act(const ExpertActivation& a, double gate, double up) {
  if (a.kind == Kind::swiglu) return gate * sigmoid(gate) * up;
  if (a.kind == Kind::geglu)
    return gate * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate))) / 2 * up;
  const double limit = a.limit, g = std::min(gate, limit), u = std::clamp(up, -limit, limit);
  return (u + 1) * g * sigmoid(1.702 * g);
}

// Its derivatives by gate and up, by differences where they do not meet a bound; a bound lets the gradient through.
struct Slopes {
  double gate, up;
};
Slopes slopes(const ExpertActivation& a, double gate, double up) {
  constexpr double step = 1e-5;
  if (a.kind == Kind::clamped) {
    // Beyond the bounds the function is flat, within and on them it is the unbounded one.
    const ExpertActivation wide{a.kind, 1e6f};
    const double g = std::min<double>(gate, a.limit), u = std::clamp<double>(up, -a.limit, a.limit);
    const auto f = [&](double dg, double du) { return act(wide, g + dg, u + du); };
    return {gate > a.limit ? 0 : (f(step, 0) - f(-step, 0)) / (2 * step),
            std::abs(up) > a.limit ? 0 : (f(0, step) - f(0, -step)) / (2 * step)};
  }
  return {(act(a, gate + step, up) - act(a, gate - step, up)) / (2 * step),
          (act(a, gate, up + step) - act(a, gate, up - step)) / (2 * step)};
}

struct Case {
  std::int64_t tokens, choices, experts, width;
  Load load;
  double magnitude;
};
const Case kCases[] = {{1, 1, 1, 1, Load::even, 1},       {5, 2, 4, 24, Load::even, 3},
                       {17, 4, 10, 33, Load::skewed, 3},  {20, 8, 128, 72, Load::skewed, 2},
                       {4, 3, 7, 1000, Load::even, 3},    {100, 2, 6, 40, Load::one_expert, 1e-3},
                       {1, 4, 32, 2880, Load::skewed, 3}, {2, 32, 60, 136, Load::even, 3},
                       {3, 2, 5, 2051, Load::even, 8},    {0, 2, 5, 16, Load::even, 1}};

struct Reference {
  Values out, out_allowed, dgate_up, dgate_up_allowed, dweights, dweights_allowed;
};

// gate_up, bias (or nothing), dout as the op sees them.
Reference reference(const Case& c, DType type, const ExpertActivation& a, const HostRouting& h, const Values& x,
                    const Values& bias, const Values& dout) {
  const std::int64_t f = c.width, rows = c.tokens * c.choices;
  // Roundings of bias addition, the exponential (2 units in the last place, and as many roundoffs of its argument as
  // that is large: 16), and a dozen operations; each moves a result by no more than the terms below are large.
  const double unit = 40 * 0x1p-24, round = type == DType::bf16 ? unit_roundoff(type) : 0;
  Reference to{Values(at(rows * f)), Values(at(rows * f)), Values(x.size()),
               Values(x.size()),     Values(at(rows)),     Values(at(rows))};
  for (std::int64_t r = 0; r < rows; ++r) {
    double total = 0;
    for (std::int64_t i = 0; i < f; ++i) {
      const std::int64_t gate_column = a.kind != Kind::clamped ? i : 2 * i;
      const std::int64_t up_column = a.kind != Kind::clamped ? f + i : 2 * i + 1;
      const std::int64_t of_bias = h.expert_of_row(r) * 2 * f;
      const double gate = x[at(r * 2 * f + gate_column)] + (bias.empty() ? 0 : bias[at(of_bias + gate_column)]);
      const double up = x[at(r * 2 * f + up_column)] + (bias.empty() ? 0 : bias[at(of_bias + up_column)]);
      const double w = h.weights[at(r)], dy = dout[at(r * f + i)], y = act(a, gate, up);
      const Slopes d = slopes(a, gate, up);
      // The distance by which a roundoff of gate and up, before the biases were added, can move value and slopes.
      const double reach = bias.empty() ? 0 : 2 * (c.magnitude + 1);
      const double size = (1 + std::abs(gate) + reach) * (1 + std::abs(up) + reach);
      const double exact = bias.empty() && a.kind == Kind::swiglu ? std::abs(y) + 0x1p-126 / unit : size;
      to.out[at(r * f + i)] = w * y;
      to.out_allowed[at(r * f + i)] = unit * w * exact + round * std::abs(w * y);
      to.dgate_up[at(r * 2 * f + gate_column)] = w * dy * d.gate;
      to.dgate_up[at(r * 2 * f + up_column)] = w * dy * d.up;
      for (const auto& [column, slope] : {std::pair(gate_column, d.gate), std::pair(up_column, d.up)})
        to.dgate_up_allowed[at(r * 2 * f + column)] =
            w * std::abs(dy) * ((unit + 1e-9) * size + round * std::abs(slope));
      to.dweights[at(r)] += dy * y;
      to.dweights_allowed[at(r)] += unit * std::abs(dy) * size;
      total += std::abs(dy * y);
    }
    to.dweights_allowed[at(r)] += 4 * std::sqrt(static_cast<double>(f)) * 0x1p-24 * (1 + total);
  }
  return to;
}

struct Variant {
  DType type;
  ExpertActivation activation;
  bool with_bias;
};

void for_each_variant(const std::function<void(const Variant&)>& body) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const ExpertActivation& activation : {kSwiglu, kGeglu, kClamped})
      for (const bool with_bias : {false, true}) body({type, activation, with_bias});
}

void check(Rig& rig, const Case& c, const Variant& variant) {
  Stream& s = rig.stream();
  const DType type = variant.type;
  const std::int64_t rows = c.tokens * c.choices;
  const std::string what =
      fmt::format("{} rows of {} {}, {} experts, kind {}, bias {}, magnitude {}", rows, c.width, name_of(type),
                  c.experts, static_cast<int>(variant.activation.kind), variant.with_bias, c.magnitude);
  const HostRouting h = random_routing(c.tokens, c.choices, c.experts, c.load, 1);
  const RoutingTensors routing = h.on_device(s);
  const TestTensor gate_up = random_tensor(s, type, {rows, 2 * c.width}, 2, c.magnitude);
  const TestTensor biases = random_tensor(s, type, {c.experts, 2 * c.width}, 3);
  const TestTensor dout = random_tensor(s, type, {rows, c.width}, 4);
  const Tensor bias = variant.with_bias ? biases.tensor() : Tensor();
  const TestTensor out(s, type, {rows, c.width}), again(s, type, {rows, c.width});
  const TestTensor dgate_up(s, type, {rows, 2 * c.width}), dweights(s, DType::f32, {rows});
  rig.ops().expert_activation(s, out, gate_up, bias, variant.activation, routing);
  rig.ops().expert_activation_grad(s, {.dgate_up = dgate_up,
                                       .dweights = dweights,
                                       .activated = again,
                                       .dout = dout,
                                       .gate_up = gate_up,
                                       .bias = bias,
                                       .activation = variant.activation,
                                       .routing = routing});
  const Reference expected = reference(c, type, variant.activation, h, gate_up.values(s),
                                       variant.with_bias ? biases.values(s) : Values(), dout.values(s));
  expect_within(out.values(s), expected.out, expected.out_allowed, what);
  EXPECT_EQ(again.bytes(s), out.bytes(s)) << what;
  expect_within(dgate_up.values(s), expected.dgate_up, expected.dgate_up_allowed, what + ", dgate_up");
  expect_within(dweights.values(s), expected.dweights, expected.dweights_allowed, what + ", dweights");
}

TEST(ExpertActivation, AgreesWithDoublePrecision) {
  Rig rig(3);
  for_each_instruction_set([&] {
    for (const Case& c : kCases) for_each_variant([&](const Variant& variant) { check(rig, c, variant); });
  });
}

// Rows that are nobody's choice have weights alone.
TEST(ExpertActivation, ARoutingOfWeightsAloneGivesTheSameBits) {
  Rig rig;
  Stream& s = rig.stream();
  const RoutingTensors whole = random_routing(25, 2, 6, Load::even, 1).on_device(s);
  const Routing routing = whole, alone{.weights = routing.weights};
  for (const DType type : {DType::f32, DType::bf16}) {
    const TestTensor gate_up = random_tensor(s, type, {50, 144}, 2, 3.0), dout = random_tensor(s, type, {50, 72}, 3);
    const auto run = [&](const Routing& given) {
      const TestTensor out(s, type, {50, 72}), again(s, type, {50, 72}), dgate_up(s, type, {50, 144}),
          dweights(s, DType::f32, {50});
      rig.ops().expert_activation(s, out, gate_up, {}, kSwiglu, given);
      rig.ops().expert_activation_grad(s, {.dgate_up = dgate_up,
                                           .dweights = dweights,
                                           .activated = again,
                                           .dout = dout,
                                           .gate_up = gate_up,
                                           .routing = given});
      return std::vector{out.bytes(s), again.bytes(s), dgate_up.bytes(s), dweights.bytes(s)};
    };
    EXPECT_EQ(run(routing), run(alone));
    const TestTensor biases(s, type, {6, 144}), out(s, type, {50, 72});
    EXPECT_THROW(rig.ops().expert_activation(s, out, gate_up, biases, kSwiglu, alone), Bug);
  }
}

// On a bound the gradient passes, a step beyond it does not; of NaN comes NaN.
TEST(ExpertActivation, BoundsAndNaN) {
  Rig rig;
  Stream& s = rig.stream();
  const float limit = 7, beyond = 7.5f;
  const double nan = std::nan("");
  const HostRouting h = [] {
    HostRouting one = HostRouting::of({0}, 1, 1);
    one.weights = {1};
    return one;
  }();
  const RoutingTensors routing = h.on_device(s);
  for (const DType type : {DType::f32, DType::bf16}) {
    const TestTensor gate_up(s, type, {1, 16},
                             {limit, 1, beyond, 1, -beyond, 1, 1, limit, 1, beyond, 1, -limit, nan, 1, 1, nan});
    const TestTensor dout(s, type, {1, 8}, Values(8, 1.0)), out(s, type, {1, 8}), again(s, type, {1, 8});
    const TestTensor dgate_up(s, type, {1, 16}), dweights(s, DType::f32, {1});
    const ExpertActivation clamped{Kind::clamped, limit};
    rig.ops().expert_activation(s, out, gate_up, {}, clamped, routing);
    rig.ops().expert_activation_grad(s, {.dgate_up = dgate_up,
                                         .dweights = dweights,
                                         .activated = again,
                                         .dout = dout,
                                         .gate_up = gate_up,
                                         .activation = clamped,
                                         .routing = routing});
    const Values y = out.values(s), dx = dgate_up.values(s);
    EXPECT_EQ(y[0], y[1]);
    EXPECT_NE(dx[0], 0.0);
    EXPECT_EQ(dx[2], 0.0);
    EXPECT_NE(dx[3], 0.0);
    EXPECT_NE(dx[4], 0.0);  // no bound below
    EXPECT_EQ(y[3], y[4]);
    EXPECT_NE(dx[7], 0.0);
    EXPECT_EQ(dx[9], 0.0);
    EXPECT_NE(dx[8], 0.0);
    EXPECT_NE(dx[11], 0.0);
    EXPECT_TRUE(std::isnan(y[6]) && std::isnan(dx[12]) && std::isnan(dx[13]));
    EXPECT_TRUE(std::isnan(y[7]) && std::isnan(dx[14]));
    EXPECT_TRUE(std::isnan(dweights.values(s)[0]));
  }
}

TEST(ExpertActivation, OutputsMayLieOnInputsAndWeightsGradientsAdd) {
  Rig rig;
  Stream& s = rig.stream();
  const RoutingTensors routing = random_routing(25, 2, 6, Load::skewed, 1).on_device(s);
  for (const std::int64_t width : {71, 256})
    for_each_variant([&](const Variant& variant) {
      const TestTensor gate_up = random_tensor(s, variant.type, {50, 2 * width}, 2, 3.0);
      const TestTensor biases = random_tensor(s, variant.type, {6, 2 * width}, 3);
      const TestTensor dout = random_tensor(s, variant.type, {50, width}, 4);
      const Tensor bias = variant.with_bias ? biases.tensor() : Tensor();
      const TestTensor dgate_up(s, variant.type, {50, 2 * width}), again(s, variant.type, {50, width});
      const TestTensor dweights(s, DType::f32, {50}), added(s, DType::f32, {50}, Values(50, 100.0));
      rig.ops().expert_activation_grad(s, {.dgate_up = dgate_up,
                                           .dweights = dweights,
                                           .activated = again,
                                           .dout = dout,
                                           .gate_up = gate_up,
                                           .bias = bias,
                                           .activation = variant.activation,
                                           .routing = routing});
      rig.ops().expert_activation_grad(s, {.dgate_up = gate_up,
                                           .dweights = added,
                                           .activated = dout,
                                           .dout = dout,
                                           .gate_up = gate_up,
                                           .bias = bias,
                                           .activation = variant.activation,
                                           .routing = routing,
                                           .dweights_mode = Accumulate::add});
      EXPECT_EQ(gate_up.bytes(s), dgate_up.bytes(s));
      EXPECT_EQ(dout.bytes(s), again.bytes(s));
      Values sum = dweights.values(s);
      for (double& x : sum) x += 100;
      expect_close(added.values(s), sum, 0x1p-23, 0, "dweights");
    });
}

TEST(ExpertActivation, SameBitsForAnyNumberOfThreads) {
  SO_CPU_ONLY("threads");
  for_each_variant([&](const Variant& variant) {
    if (!variant.with_bias) return;
    std::vector<std::vector<std::byte>> first;
    for (const int threads : {1, 2, 5}) {
      Rig rig(threads);
      Stream& s = rig.stream();
      const RoutingTensors routing = random_routing(100, 4, 7, Load::skewed, 1).on_device(s);
      const TestTensor gate_up = random_tensor(s, variant.type, {400, 600}, 2),
                       dout = random_tensor(s, variant.type, {400, 300}, 3);
      const TestTensor biases = random_tensor(s, variant.type, {7, 600}, 4), dweights(s, DType::f32, {400});
      rig.ops().expert_activation_grad(s, {.dgate_up = gate_up,
                                           .dweights = dweights,
                                           .activated = dout,
                                           .dout = dout,
                                           .gate_up = gate_up,
                                           .bias = biases,
                                           .activation = variant.activation,
                                           .routing = routing});
      const std::vector<std::vector<std::byte>> now = {gate_up.bytes(s), dout.bytes(s), dweights.bytes(s)};
      if (first.empty()) first = now;
      EXPECT_EQ(first, now) << threads << " threads";
    }
  });
}

TEST(ExpertActivation, WrongArgumentsAreRefused) {
  Rig rig;
  Stream& s = rig.stream();
  const RoutingTensors routing = random_routing(4, 2, 6, Load::even, 1).on_device(s);
  const TestTensor x(s, DType::bf16, {8, 20}), y(s, DType::bf16, {8, 10}), other(s, DType::f32, {8, 10});
  const TestTensor bias(s, DType::bf16, {6, 20}), dweights(s, DType::f32, {8}), short_one(s, DType::f32, {7});
  Ops& ops = rig.ops();
  const auto add = Accumulate::add;
  EXPECT_THROW(ops.expert_activation(s, x, x, {}, kSwiglu, routing), Bug);
  EXPECT_THROW(ops.expert_activation(s, other, x, {}, kSwiglu, routing), Bug);
  EXPECT_THROW(ops.expert_activation(s, y, x, y, kSwiglu, routing), Bug);
  EXPECT_THROW(ops.expert_activation(s, y, x, bias, {Kind::clamped, 0}, routing), Bug);
  EXPECT_THROW(ops.expert_activation_grad(s, {.dgate_up = x,
                                              .dweights = short_one,
                                              .activated = y,
                                              .dout = y,
                                              .gate_up = x,
                                              .bias = bias,
                                              .activation = kSwiglu,
                                              .routing = routing,
                                              .dweights_mode = add}),
               Bug);
  EXPECT_THROW(ops.expert_activation_grad(s, {.dgate_up = x,
                                              .dweights = dweights,
                                              .activated = Tensor(),
                                              .dout = y,
                                              .gate_up = x,
                                              .bias = bias,
                                              .activation = kSwiglu,
                                              .routing = routing,
                                              .dweights_mode = add}),
               Bug);
  EXPECT_THROW(ops.expert_activation_grad(s, {.dgate_up = y,
                                              .dweights = dweights,
                                              .activated = y,
                                              .dout = y,
                                              .gate_up = x,
                                              .bias = bias,
                                              .activation = kSwiglu,
                                              .routing = routing,
                                              .dweights_mode = add}),
               Bug);
}

}  // namespace
}  // namespace so::test::expert_activation_test
