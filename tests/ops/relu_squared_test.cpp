// MLPs and experts without a gate: the square of ReLU.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "ops/routings.h"
#include "support/instruction_sets.h"
#include "support/random_tensors.h"
#include "support/rig.h"

namespace so::test::relu_squared_test {
namespace {

using Values = std::vector<double>;

constexpr MlpActivation kAlone = MlpActivation::relu_squared;
constexpr ExpertActivation kExperts{ExpertActivation::Kind::relu_squared, 0};

double relu(double x) { return std::max(x, 0.0); }
std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Each result is two or three products of numbers that are given.
double allowed(DType dtype, double exact) { return (4 * 0x1p-24 + unit_roundoff(dtype)) * std::abs(exact); }

TEST(ReluSquared, AgreesWithDoublePrecision) {
  Rig rig(3);
  Stream& s = rig.stream();
  for_each_instruction_set([&] {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const auto& [n, width] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 33}, {100, 1000}, {4, 2051}}) {
        const TestTensor up = random_tensor(s, dtype, {n, width}, 1, 3.0),
                         dout = random_tensor(s, dtype, {n, width}, 2);
        const TestTensor out(s, dtype, {n, width}), dup(s, dtype, {n, width}), again(s, dtype, {n, width});
        rig.ops().swiglu(s, out, up, kAlone);
        rig.ops().swiglu_grad(s, dup, dout, up, again, kAlone);
        EXPECT_EQ(again.bytes(s), out.bytes(s));
        const Values x = up.values(s), dy = dout.values(s);
        Values y(x.size()), y_allowed(x.size()), dx(x.size()), dx_allowed(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
          y[i] = relu(x[i]) * relu(x[i]);
          dx[i] = 2 * relu(x[i]) * dy[i];
          y_allowed[i] = allowed(dtype, y[i]);
          dx_allowed[i] = allowed(dtype, dx[i]);
        }
        const std::string what = fmt::format("{}x{} of {}", n, width, name_of(dtype));
        expect_within(out.values(s), y, y_allowed, what);
        expect_within(dup.values(s), dx, dx_allowed, what + ", gradient");
        rig.ops().swiglu_grad(s, up, dout, up, dout, kAlone);  // in the places of what it reads
        EXPECT_EQ(up.bytes(s), dup.bytes(s)) << what;
        EXPECT_EQ(dout.bytes(s), out.bytes(s)) << what;
      }
  });
}

TEST(ReluSquared, OfNaNComesNaN) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const TestTensor up(s, dtype, {1, 4}, {std::nan(""), -2.0, 0.0, 3.0}), dout(s, dtype, {1, 4}, Values(4, 1.0));
    const TestTensor out(s, dtype, {1, 4}), dup(s, dtype, {1, 4});
    rig.ops().swiglu(s, out, up, kAlone);
    rig.ops().swiglu_grad(s, dup, dout, up, Tensor(), kAlone);
    const Values y = out.values(s), dx = dup.values(s);
    EXPECT_TRUE(std::isnan(y[0]) && std::isnan(dx[0]));
    EXPECT_EQ(Values(y.begin() + 1, y.end()), (Values{0, 0, 9}));
    EXPECT_EQ(Values(dx.begin() + 1, dx.end()), (Values{0, 0, 6}));
  }
}

struct Case {
  std::int64_t tokens, choices, experts, width;
  Load load;
};

void check_experts(Rig& rig, const Case& c, DType dtype, bool with_bias) {
  Stream& s = rig.stream();
  const std::int64_t rows = c.tokens * c.choices;
  const std::string what =
      fmt::format("{} rows of {} {}, {} experts, bias {}", rows, c.width, name_of(dtype), c.experts, with_bias);
  const HostRouting h = random_routing(c.tokens, c.choices, c.experts, c.load, 1);
  const RoutingTensors routing = h.on_device(s);
  const TestTensor up = random_tensor(s, dtype, {rows, c.width}, 2, 3.0);
  const TestTensor biases = random_tensor(s, dtype, {c.experts, c.width}, 3);
  const TestTensor dout = random_tensor(s, dtype, {rows, c.width}, 4);
  const Tensor bias = with_bias ? biases.tensor() : Tensor();
  const TestTensor out(s, dtype, {rows, c.width}), again(s, dtype, {rows, c.width}), dup(s, dtype, {rows, c.width}),
      dweights(s, DType::f32, {rows});
  const auto gradient = [&](Tensor dx, Tensor activated) {
    rig.ops().expert_activation_grad(s, {.dgate_up = dx,
                                         .dweights = dweights,
                                         .activated = activated,
                                         .dout = dout,
                                         .gate_up = up,
                                         .bias = bias,
                                         .activation = kExperts,
                                         .routing = routing});
  };
  rig.ops().expert_activation(s, out, up, bias, kExperts, routing);
  gradient(dup, again);
  EXPECT_EQ(again.bytes(s), out.bytes(s)) << what;
  const Values x = up.values(s), b = biases.values(s), dy = dout.values(s);
  Values y(x.size()), y_allowed(x.size()), dx(x.size()), dx_allowed(x.size()), dw(at(rows)), dw_allowed(at(rows));
  for (std::int64_t r = 0; r < rows; ++r) {
    double total = 0;
    for (std::int64_t i = 0; i < c.width; ++i) {
      const std::size_t j = at(r * c.width + i);
      const double bias_here = with_bias ? b[at(h.expert_of_row(r) * c.width + i)] : 0, w = h.weights[at(r)];
      const double active = relu(x[j] + bias_here);
      // What rounding the sum with the bias moves.
      const double moved = with_bias ? 0x1p-24 * (std::abs(x[j]) + std::abs(bias_here)) : 0;
      y[j] = w * active * active;
      dx[j] = 2 * w * active * dy[j];
      y_allowed[j] = allowed(dtype, y[j]) + 2 * w * active * moved;
      dx_allowed[j] = allowed(dtype, dx[j]) + 2 * w * std::abs(dy[j]) * moved;
      dw[at(r)] += dy[j] * active * active;
      dw_allowed[at(r)] += std::abs(dy[j]) * active * 2 * moved;
      total += std::abs(dy[j]) * active * active;
    }
    dw_allowed[at(r)] += 4 * std::sqrt(static_cast<double>(c.width)) * 0x1p-24 * (1 + total);
  }
  expect_within(out.values(s), y, y_allowed, what);
  expect_within(dup.values(s), dx, dx_allowed, what + ", gradient");
  expect_within(dweights.values(s), dw, dw_allowed, what + ", dweights");
  gradient(up, dout);  // in the places of what it reads
  EXPECT_EQ(up.bytes(s), dup.bytes(s)) << what;
  EXPECT_EQ(dout.bytes(s), out.bytes(s)) << what;
}

TEST(ReluSquared, OfExpertsAgreesWithDoublePrecision) {
  Rig rig(3);
  for_each_instruction_set([&] {
    for (const Case& c :
         {Case{1, 1, 1, 1, Load::even}, Case{17, 4, 10, 33, Load::skewed}, Case{20, 6, 128, 72, Load::skewed},
          Case{4, 3, 7, 1000, Load::one_expert}, Case{3, 2, 5, 2051, Load::even}, Case{0, 2, 5, 16, Load::even}})
      for (const DType dtype : {DType::f32, DType::bf16})
        for (const bool with_bias : {false, true}) check_experts(rig, c, dtype, with_bias);
  });
}

TEST(ReluSquared, WrongWidthsAreRefused) {
  Rig rig;
  Stream& s = rig.stream();
  const RoutingTensors routing = random_routing(4, 2, 6, Load::even, 1).on_device(s);
  const TestTensor narrow(s, DType::bf16, {8, 10}), wide(s, DType::bf16, {8, 20});
  EXPECT_THROW(rig.ops().swiglu(s, narrow, wide, kAlone), Bug);
  EXPECT_THROW(rig.ops().swiglu_grad(s, wide, narrow, wide, Tensor(), kAlone), Bug);
  EXPECT_THROW(rig.ops().expert_activation(s, narrow, wide, {}, kExperts, routing), Bug);
  EXPECT_THROW(rig.ops().expert_activation(s, narrow, narrow, {}, ExpertActivation(), routing), Bug);
}

}  // namespace
}  // namespace so::test::relu_squared_test
