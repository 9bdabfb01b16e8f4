#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ops/spread_heads.h"
#include "support/rig.h"

namespace so::test::step_gates_test {
namespace {

using Values = std::vector<double>;
// As in delta_gates_test.cpp.
constexpr double kError = 16 * 0x1p-24;
constexpr double kTiny = std::numeric_limits<float>::min();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::log1p(std::exp(-std::abs(x))) + std::max(x, 0.0); }

struct Case {
  std::int64_t n, heads;
  double magnitude;
  float low = 0, high = kInfinity;
  std::int64_t margin = 0;
};
// Limits that no step meets and that many do; where exp overflows in either direction, several blocks of rows, heads
// amid other columns.
const Case kCases[] = {{1, 1, 1}, {5, 4, 3, 0.001f, kInfinity, 2}, {200, 64, 8, 0.5f, 2.0f}, {130, 33, 300, 0, 50, 5}};

struct Data {
  Data(Stream& s, const Case& c, DType dtype)
      : low(c.low),
        high(c.high),
        layout{c.n, 1, c.heads, c.margin},
        x(s, dtype, layout, 1, c.magnitude),
        a_log(random_tensor(s, dtype, {c.heads}, 3, 2.0)),
        dt_bias(random_tensor(s, dtype, {c.heads}, 4, 2.0)),
        decay(s, DType::f32, {c.n, c.heads}),
        step(s, DType::f32, {c.n, c.heads}),
        ddecay(random_tensor(s, DType::f32, {c.n, c.heads}, 5)),
        dstep(random_tensor(s, DType::f32, {c.n, c.heads}, 6)) {}
  Ops::StepGates call() const {
    return {.decay = decay, .step = step, .x = x, .a_log = a_log, .dt_bias = dt_bias, .low = low, .high = high};
  }

  float low, high;
  HeadLayout layout;
  SpreadHeads x;
  TestTensor a_log, dt_bias, decay, step, ddecay, dstep;
};

void check(Rig& rig, const Case& c, DType dtype, DType weight_grad, Accumulate mode) {
  Stream& s = rig.stream();
  const Data data(s, c, dtype);
  const SpreadHeads dx(s, dtype, data.layout, 7);
  const TestTensor da_log = random_tensor(s, weight_grad, {c.heads}, 9),
                   ddt_bias = random_tensor(s, weight_grad, {c.heads}, 10);
  const Values da_log_before = da_log.values(s), ddt_bias_before = ddt_bias.values(s);
  rig.ops().step_gates(s, data.call());
  // The gradient makes decay and step again.
  Ops::StepGates forward = data.call();
  forward.decay = forward.step = Tensor();
  rig.ops().step_gates_grad(s, {.dx = dx,
                                .da_log = da_log,
                                .ddt_bias = ddt_bias,
                                .da_log_mode = mode,
                                .ddt_bias_mode = mode,
                                .ddecay = data.ddecay,
                                .dstep = data.dstep,
                                .forward = forward});
  const std::string what = fmt::format("{} rows, {} heads, magnitude {}, steps from {} to {}, {}", c.n, c.heads,
                                       c.magnitude, c.low, c.high, name_of(dtype));
  const Values x = data.x.values(s), a_log = data.a_log.values(s), bias = data.dt_bias.values(s);
  const Values ddecay = data.ddecay.values(s), dstep = data.dstep.values(s);
  const auto heads = static_cast<std::size_t>(c.heads);
  const double low = static_cast<double>(c.low), high = static_cast<double>(c.high);
  Values decay, decay_off, step, step_off, d_x, d_x_off;
  Values d_a_log(heads), d_a_log_scale(heads), d_bias(heads), d_bias_scale(heads);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t h = i % heads;
    // x + dt_bias is rounded, which counts where it is small; near 0 or above, softplus and sigmoid change by no more.
    const double sum = x[i] + bias[h], shift = 0x1p-24 * std::abs(sum), left = std::exp(a_log[h]);
    const double wanted = softplus(sum);
    step.push_back(std::clamp(wanted, low, high));
    step_off.push_back((kError + shift) * step[i] + kTiny);
    decay.push_back(-left * step[i]);
    decay_off.push_back((kError + shift) * std::abs(decay[i]) + left * kTiny);
    // No step of these cases is so near to a limit that rounding decides.
    const double reaches = wanted >= low && wanted <= high ? 1 : 0, of_step = dstep[i] - ddecay[i] * left;
    const double scale = reaches * (std::abs(dstep[i]) + std::abs(ddecay[i]) * left) * sigmoid(sum);
    d_x.push_back(reaches * of_step * sigmoid(sum));
    d_x_off.push_back((kError + shift) * scale + unit_roundoff(dtype) * std::abs(d_x[i]) + (1 + left) * kTiny);
    d_a_log[h] += ddecay[i] * decay[i];
    d_a_log_scale[h] += std::abs(ddecay[i] * decay[i]) * (1 + shift / kError);
    d_bias[h] += d_x[i];
    d_bias_scale[h] += scale * (1 + shift / kError);
  }
  expect_within(data.step.values(s), step, step_off, what + ", step");
  expect_within(data.decay.values(s), decay, decay_off, what + ", decay");
  dx.expect(s, d_x, d_x_off, what + ", dx");
  const auto expect_sum = [&](const TestTensor& got, Values sum, const Values& scale, const Values& before,
                              const std::string& name) {
    Values off(heads);
    for (std::size_t h = 0; h < heads; ++h) {
      if (mode == Accumulate::add) sum[h] += before[h];
      off[h] = (64 * 0x1p-24 + kError) * scale[h] + unit_roundoff(weight_grad) * std::abs(sum[h]) + 100 * kTiny;
    }
    expect_within(got.values(s), sum, off, what + name);
  };
  expect_sum(da_log, d_a_log, d_a_log_scale, da_log_before, ", da_log");
  expect_sum(ddt_bias, d_bias, d_bias_scale, ddt_bias_before, ", ddt_bias");
}

TEST(StepGates, AgreeWithDoublePrecision) {
  Rig rig;
  for (const Case& c : kCases) {
    check(rig, c, DType::f32, DType::f32, Accumulate::overwrite);
    check(rig, c, DType::f32, DType::f32, Accumulate::add);
    check(rig, c, DType::bf16, DType::f32, Accumulate::add);
    check(rig, c, DType::bf16, DType::bf16, Accumulate::overwrite);
  }
}

TEST(StepGates, TheGradientMayWorkInPlaceAndWithoutThoseOfWeights) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Data data(s, {130, 32, 3, 0.1f, 1, 1}, dtype);
    const SpreadHeads dx(s, dtype, data.layout, 1, 3);  // as data.x
    Ops::StepGatesGrad grad{.dx = dx, .ddecay = data.ddecay, .dstep = data.dstep, .forward = data.call()};
    rig.ops().step_gates_grad(s, grad);
    grad.dx = data.x;
    rig.ops().step_gates_grad(s, grad);
    EXPECT_EQ(data.x.bytes(s), dx.bytes(s));
  }
}

TEST(StepGates, ANanStaysOne) {
  Rig rig;
  Stream& s = rig.stream();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const TestTensor x(s, DType::f32, {1, 2}, {nan, 1.0}), zero(s, DType::f32, {2}, {0.0, 0.0});
  const TestTensor decay(s, DType::f32, {1, 2}), step(s, DType::f32, {1, 2});
  rig.ops().step_gates(
      s,
      {.decay = decay, .step = step, .x = {x, 0, 1, 2}, .a_log = zero, .dt_bias = zero, .low = 0.001f, .high = 0.1f});
  EXPECT_TRUE(std::isnan(decay.values(s)[0]) && !std::isnan(decay.values(s)[1]));
  EXPECT_TRUE(std::isnan(step.values(s)[0]) && !std::isnan(step.values(s)[1]));
}

TEST(StepGates, TheNumberOfThreadsDoesNotShow) {
  std::vector<std::vector<std::byte>> first;
  for (const int threads : {1, 2, 5}) {
    Rig rig(threads);
    Stream& s = rig.stream();
    const Data data(s, {3333, 64, 3, 0.1f}, DType::bf16);
    const SpreadHeads dx(s, DType::bf16, data.layout, 7);
    const TestTensor da_log(s, DType::f32, {64}), ddt_bias(s, DType::f32, {64});
    rig.ops().step_gates(s, data.call());
    rig.ops().step_gates_grad(s, {.dx = dx,
                                  .da_log = da_log,
                                  .ddt_bias = ddt_bias,
                                  .ddecay = data.ddecay,
                                  .dstep = data.dstep,
                                  .forward = data.call()});
    const std::vector<std::vector<std::byte>> all = {data.decay.bytes(s), data.step.bytes(s), dx.bytes(s),
                                                     da_log.bytes(s), ddt_bias.bytes(s)};
    if (first.empty()) first = all;
    EXPECT_EQ(all, first) << threads << " threads";
  }
}

TEST(StepGates, RefuseWrongArguments) {
  Rig rig;
  Stream& s = rig.stream();
  const Data data(s, {4, 8, 1}, DType::bf16), fewer(s, {4, 7, 1}, DType::bf16);
  Ops::StepGates call = data.call();
  call.step = fewer.step;
  EXPECT_THROW(rig.ops().step_gates(s, call), Bug);
  call = data.call(), call.a_log = data.ddecay;
  EXPECT_THROW(rig.ops().step_gates(s, call), Bug);
  call = data.call(), call.low = 2, call.high = 1;
  EXPECT_THROW(rig.ops().step_gates(s, call), Bug);
  Ops::StepGatesGrad grad{.dx = data.x, .ddecay = data.ddecay, .dstep = data.dstep, .forward = data.call()};
  grad.da_log = data.a_log;  // without ddt_bias
  EXPECT_THROW(rig.ops().step_gates_grad(s, grad), Bug);
  grad.da_log = Tensor(), grad.dstep = fewer.dstep;
  EXPECT_THROW(rig.ops().step_gates_grad(s, grad), Bug);
}

}  // namespace
}  // namespace so::test::step_gates_test
