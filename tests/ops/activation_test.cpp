#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/instruction_sets.h"
#include "support/random_tensors.h"
#include "support/rig.h"

namespace so::test::activation_test {
namespace {

using Values = std::vector<double>;

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// The exponential is good to 2 units in the last place (4 roundoffs), and no result takes more than 8 operations more.
constexpr double kRelative = 12 * 0x1p-24;
// Below this an fp32 exponential is subnormal and loses digits.
constexpr double kTiny = std::numeric_limits<float>::min();

struct Case {
  std::int64_t n, width;
  double magnitude;
};
// The last: gates up to 200, where exp overflows fp32 in one direction and vanishes in the other.
const Case kCases[] = {{1, 1, 1}, {1, 384, 3}, {3, 33, 5}, {100, 1000, 2}, {4, 61, 1e-4}, {16, 200, 200}};

void check(Rig& rig, const Case& c, DType dtype) {
  Stream& s = rig.stream();
  const auto [n, width, magnitude] = c;
  const std::string what = fmt::format("{}x{} of {}, magnitude {}", n, width, name_of(dtype), magnitude);
  const TestTensor gate_up = random_tensor(s, dtype, {n, 2 * width}, 1, magnitude);
  const TestTensor dout = random_tensor(s, dtype, {n, width}, 2);
  const TestTensor out(s, dtype, {n, width}), dgate_up(s, dtype, {n, 2 * width});
  rig.ops().swiglu(s, out, gate_up);
  rig.ops().swiglu_grad(s, dgate_up, dout, gate_up, Tensor());

  const Values x = gate_up.values(s), dy = dout.values(s);
  Values y(dy.size()), y_allowed(dy.size()), dx(x.size()), dx_allowed(x.size());
  const auto f = static_cast<std::size_t>(width);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t gate_at = i / f * 2 * f + i % f, up_at = gate_at + f;
    const double g = x[gate_at], u = x[up_at], sg = sigmoid(g), opposite = sigmoid(-g);
    y[i] = g * sg * u;
    y_allowed[i] = (kRelative + unit_roundoff(dtype)) * std::abs(y[i]) + kTiny * (1 + std::abs(g * u));
    dx[gate_at] = dy[i] * u * (sg + g * sg * opposite);
    dx_allowed[gate_at] = kRelative * std::abs(dy[i] * u) * (sg + std::abs(g) * sg * opposite) +
                          unit_roundoff(dtype) * std::abs(dx[gate_at]) + kTiny * (1 + std::abs(dy[i] * g * u));
    dx[up_at] = dy[i] * g * sg;
    dx_allowed[up_at] = (kRelative + unit_roundoff(dtype)) * std::abs(dx[up_at]) + kTiny * (1 + std::abs(dy[i] * g));
  }
  expect_within(out.values(s), y, y_allowed, what + ", out");
  expect_within(dgate_up.values(s), dx, dx_allowed, what + ", dgate_up");
}

TEST(Swiglu, AgreesWithDoublePrecision) {
  Rig rig;
  for_each_instruction_set([&] {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Case& c : kCases) check(rig, c, dtype);
  });
}

// Differences of the forward pass in double: independent of the derivative's formula.
TEST(Swiglu, TheGradientAgreesWithFiniteDifferences) {
  Rig rig;
  Stream& s = rig.stream();
  const std::int64_t n = 2, width = 37;
  const double step = 1e-5;
  const TestTensor gate_up = random_tensor(s, DType::f32, {n, 2 * width}, 1, 4.0);
  const TestTensor dout = random_tensor(s, DType::f32, {n, width}, 2), dgate_up(s, DType::f32, {n, 2 * width});
  rig.ops().swiglu_grad(s, dgate_up, dout, gate_up, Tensor());
  const Values x = gate_up.values(s), dy = dout.values(s);
  const auto value = [](double g, double u) { return g * sigmoid(g) * u; };
  Values slopes(x.size());
  const auto f = static_cast<std::size_t>(width);
  for (std::size_t i = 0; i < dy.size(); ++i) {
    const std::size_t gate_at = i / f * 2 * f + i % f, up_at = gate_at + f;
    const double g = x[gate_at], u = x[up_at];
    slopes[gate_at] = dy[i] * (value(g + step, u) - value(g - step, u)) / (2 * step);
    slopes[up_at] = dy[i] * (value(g, u + step) - value(g, u - step)) / (2 * step);
  }
  expect_close(dgate_up.values(s), slopes, 0, 4e-6, "dgate_up");  // gradients up to 4 in fp32, differences to 1e-9
}

// GEGLU by its own formula, tanh and all, and its slope by differences of that.
TEST(Geglu, AgreesWithDoublePrecision) {
  Rig rig;
  Stream& s = rig.stream();
  const auto gelu = [](double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
  };
  // The sigmoid's argument has an error of three roundings, which count by its size: up to 30 where the result is not
  // 0.
  constexpr double kGelu = kRelative + 4 * 30 * 0x1p-24;
  for_each_instruction_set([&] {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const auto& [n, width, magnitude] : {Case{1, 1, 1}, Case{3, 33, 5}, Case{100, 256, 2}, Case{4, 61, 1e-4}}) {
        const TestTensor gate_up = random_tensor(s, dtype, {n, 2 * width}, 1, magnitude);
        const TestTensor dout = random_tensor(s, dtype, {n, width}, 2);
        const TestTensor out(s, dtype, {n, width}), dgate_up(s, dtype, {n, 2 * width}), again(s, dtype, {n, width});
        rig.ops().swiglu(s, out, gate_up, MlpActivation::gelu_tanh);
        rig.ops().swiglu_grad(s, dgate_up, dout, gate_up, again, MlpActivation::gelu_tanh);
        EXPECT_EQ(again.bytes(s), out.bytes(s));
        const Values x = gate_up.values(s), dy = dout.values(s);
        Values y(dy.size()), y_allowed(dy.size()), dx(x.size()), dx_allowed(x.size());
        const auto f = static_cast<std::size_t>(width);
        for (std::size_t i = 0; i < y.size(); ++i) {
          const std::size_t gate_at = i / f * 2 * f + i % f, up_at = gate_at + f;
          const double g = x[gate_at], u = x[up_at], step = 1e-5;
          const double slope = (gelu(g + step) - gelu(g - step)) / (2 * step);
          y[i] = gelu(g) * u;
          // tanh in double loses what is left of 1 for large negative gates.
          y_allowed[i] = (kGelu + unit_roundoff(dtype)) * std::abs(y[i]) + 1e-15 * std::abs(g * u) + kTiny;
          dx[gate_at] = dy[i] * u * slope;
          dx_allowed[gate_at] = 4e-6 * std::abs(dy[i] * u) + unit_roundoff(dtype) * std::abs(dx[gate_at]);
          dx[up_at] = dy[i] * gelu(g);
          dx_allowed[up_at] =
              (kGelu + unit_roundoff(dtype)) * std::abs(dx[up_at]) + 1e-15 * std::abs(dy[i] * g) + kTiny;
        }
        const std::string what = fmt::format("{}x{} of {}, magnitude {}", n, width, name_of(dtype), magnitude);
        expect_within(out.values(s), y, y_allowed, what + ", out");
        expect_within(dgate_up.values(s), dx, dx_allowed, what + ", dgate_up");
      }
  });
}

TEST(Geglu, Limits) {
  Rig rig;
  Stream& s = rig.stream();
  const TestTensor gate_up(s, DType::f32, {1, 8}, {1e38, -1e38, 1e15, -1e15, 1.0, 1.0, 2.0, 2.0});
  const TestTensor dout(s, DType::f32, {1, 4}, {1.0, 1.0, 1.0, 1.0});
  const TestTensor out(s, DType::f32, {1, 4}), dgate_up(s, DType::f32, {1, 8});
  rig.ops().swiglu(s, out, gate_up, MlpActivation::gelu_tanh);
  rig.ops().swiglu_grad(s, dgate_up, dout, gate_up, Tensor(), MlpActivation::gelu_tanh);
  const Values y = out.values(s), dx = dgate_up.values(s);
  const auto rounded = [](double x) { return static_cast<double>(static_cast<float>(x)); };
  EXPECT_EQ(y, (Values{rounded(1e38), 0, rounded(2e15), 0}));
  EXPECT_EQ(dx, (Values{1, 0, 2, 0, rounded(1e38), 0, rounded(1e15), 0}));
}

TEST(Swiglu, LimitsAndNaN) {
  Rig rig;
  Stream& s = rig.stream();
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const TestTensor gate_up(s, DType::f32, {1, 8}, {1e38, -1e38, 0.0, nan, 1.0, 1.0, inf, 1.0});
  const TestTensor dout(s, DType::f32, {1, 4}, {1.0, 1.0, 1.0, 1.0});
  const TestTensor out(s, DType::f32, {1, 4}), dgate_up(s, DType::f32, {1, 8});
  rig.ops().swiglu(s, out, gate_up);
  rig.ops().swiglu_grad(s, dgate_up, dout, gate_up, Tensor());
  const Values y = out.values(s), dx = dgate_up.values(s);
  EXPECT_EQ(y[0], static_cast<float>(1e38));  // silu(x) = x
  EXPECT_EQ(y[1], 0.0);                       // silu(-x) = 0
  EXPECT_TRUE(std::isnan(y[2]));              // 0 * inf
  EXPECT_TRUE(std::isnan(y[3]));
  EXPECT_EQ(dx[0], 1.0);
  EXPECT_EQ(dx[1], 0.0);
  EXPECT_TRUE(std::isnan(dx[3]));
  EXPECT_TRUE(std::isnan(dx[7]));
}

TEST(Swiglu, TheGradientMayOverwriteTheInput) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const TestTensor gate_up = random_tensor(s, dtype, {50, 2 * 71}, 1), dout = random_tensor(s, dtype, {50, 71}, 2);
    const TestTensor own(s, dtype, {50, 2 * 71});
    rig.ops().swiglu_grad(s, own, dout, gate_up, Tensor());
    rig.ops().swiglu_grad(s, gate_up, dout, gate_up, Tensor());
    EXPECT_EQ(gate_up.bytes(s), own.bytes(s));
  }
}

TEST(Swiglu, TheGradientCanMakeTheActivationAgain) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t width : {71, 256}) {
      const TestTensor gate_up = random_tensor(s, dtype, {50, 2 * width}, 1, 3.0);
      const TestTensor dout = random_tensor(s, dtype, {50, width}, 2);
      const TestTensor out(s, dtype, {50, width}), again(s, dtype, {50, width});
      const TestTensor dgate_up(s, dtype, {50, 2 * width}), same(s, dtype, {50, 2 * width});
      rig.ops().swiglu(s, out, gate_up);
      rig.ops().swiglu_grad(s, dgate_up, dout, gate_up, again);
      EXPECT_EQ(again.bytes(s), out.bytes(s));
      rig.ops().swiglu_grad(s, same, dout, gate_up, dout);  // in the place of dout
      EXPECT_EQ(dout.bytes(s), out.bytes(s));
      EXPECT_EQ(same.bytes(s), dgate_up.bytes(s));
    }
}

TEST(Swiglu, TheNumberOfThreadsDoesNotShow) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<std::vector<std::byte>> first;
    for (const int threads : {1, 2, 3, 5}) {
      Rig rig(threads);
      Stream& s = rig.stream();
      const TestTensor gate_up = random_tensor(s, dtype, {301, 2 * 777}, 1);
      const TestTensor dout = random_tensor(s, dtype, {301, 777}, 2);
      const TestTensor out(s, dtype, {301, 777}), dgate_up(s, dtype, {301, 2 * 777});
      rig.ops().swiglu(s, out, gate_up);
      rig.ops().swiglu_grad(s, dgate_up, dout, gate_up, Tensor());
      const std::vector<std::vector<std::byte>> all = {out.bytes(s), dgate_up.bytes(s)};
      if (first.empty()) first = all;
      EXPECT_EQ(all, first) << threads << " threads";
    }
  }
}

TEST(Swiglu, RefusesWrongArguments) {
  Rig rig;
  Stream& s = rig.stream();
  const TestTensor out(s, DType::f32, {4, 8}), gate_up(s, DType::f32, {4, 16}), narrow(s, DType::f32, {4, 15});
  const TestTensor half(s, DType::bf16, {4, 16});
  EXPECT_THROW(rig.ops().swiglu(s, out, narrow), Bug);
  EXPECT_THROW(rig.ops().swiglu(s, out, half), Bug);
  EXPECT_THROW(rig.ops().swiglu_grad(s, half, out, gate_up, Tensor()), Bug);
  EXPECT_THROW(rig.ops().swiglu_grad(s, gate_up, gate_up, gate_up, Tensor()), Bug);
}

}  // namespace
}  // namespace so::test::activation_test
