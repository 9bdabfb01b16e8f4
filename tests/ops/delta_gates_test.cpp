#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ops/spread_heads.h"
#include "support/rig.h"

namespace so::test::delta_gates_test {
namespace {

using Values = std::vector<double>;
// Two exponentials or logarithms of 4 roundoffs each and at most 8 operations more.
constexpr double kError = 16 * 0x1p-24;
constexpr double kTiny = std::numeric_limits<float>::min();

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::log1p(std::exp(-std::abs(x))) + std::max(x, 0.0); }

struct Case {
  std::int64_t n, heads;
  double magnitude;
  std::int64_t margin = 0;
};
// Where exp overflows in either direction, several blocks of rows, heads amid other columns.
const Case kCases[] = {{1, 1, 1}, {5, 4, 3, 2}, {200, 32, 8}, {130, 33, 300, 5}};

struct Data {
  Data(Stream& s, const Case& c, DType dtype)
      : layout{c.n, 1, c.heads, c.margin},
        a(s, dtype, layout, 1, c.magnitude),
        b(s, dtype, layout, 2, c.magnitude),
        a_log(random_tensor(s, dtype, {c.heads}, 3, 2.0)),
        dt_bias(random_tensor(s, dtype, {c.heads}, 4, 2.0)),
        decay(s, DType::f32, {c.n, c.heads}),
        rate(s, DType::f32, {c.n, c.heads}),
        ddecay(random_tensor(s, DType::f32, {c.n, c.heads}, 5)),
        drate(random_tensor(s, DType::f32, {c.n, c.heads}, 6)) {}
  Ops::DeltaGates call() const {
    return {.decay = decay, .rate = rate, .a = a, .b = b, .a_log = a_log, .dt_bias = dt_bias};
  }

  HeadLayout layout;
  SpreadHeads a, b;
  TestTensor a_log, dt_bias, decay, rate, ddecay, drate;
};

void check(Rig& rig, const Case& c, DType dtype, DType weight_grad, Accumulate mode) {
  Stream& s = rig.stream();
  const Data data(s, c, dtype);
  const SpreadHeads da(s, dtype, data.layout, 7), db(s, dtype, data.layout, 8);
  const TestTensor da_log = random_tensor(s, weight_grad, {c.heads}, 9),
                   ddt_bias = random_tensor(s, weight_grad, {c.heads}, 10);
  const Values da_log_before = da_log.values(s), ddt_bias_before = ddt_bias.values(s);
  rig.ops().delta_gates(s, data.call());
  // The gradient makes decay and rate again.
  Ops::DeltaGates forward = data.call();
  forward.decay = forward.rate = Tensor();
  rig.ops().delta_gates_grad(s, {.da = da,
                                 .db = db,
                                 .da_log = da_log,
                                 .ddt_bias = ddt_bias,
                                 .da_log_mode = mode,
                                 .ddt_bias_mode = mode,
                                 .ddecay = data.ddecay,
                                 .drate = data.drate,
                                 .forward = forward});
  const std::string what =
      fmt::format("{} rows, {} heads, magnitude {}, {}", c.n, c.heads, c.magnitude, name_of(dtype));
  const Values a = data.a.values(s), b = data.b.values(s), a_log = data.a_log.values(s), bias = data.dt_bias.values(s);
  const Values ddecay = data.ddecay.values(s), drate = data.drate.values(s);
  const auto heads = static_cast<std::size_t>(c.heads);
  Values decay, decay_off, rate, rate_off, d_a, d_a_off, d_b, d_b_off;
  Values d_a_log(heads), d_a_log_scale(heads), d_bias(heads), d_bias_scale(heads);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const std::size_t h = i % heads;
    // a + dt_bias is rounded, which counts where it is small; near 0 or above, softplus and sigmoid change by no more.
    const double x = a[i] + bias[h], shift = 0x1p-24 * std::abs(x), left = std::exp(a_log[h]);
    decay.push_back(-left * softplus(x));
    decay_off.push_back((kError + shift) * std::abs(decay[i]) + left * kTiny);
    rate.push_back(sigmoid(b[i]));
    rate_off.push_back(kError * rate[i] + kTiny);
    d_a.push_back(-ddecay[i] * left * sigmoid(x));
    d_a_off.push_back((kError + shift + unit_roundoff(dtype)) * std::abs(d_a[i]) + left * kTiny);
    d_b.push_back(drate[i] * sigmoid(b[i]) * sigmoid(-b[i]));
    d_b_off.push_back((kError + unit_roundoff(dtype)) * std::abs(d_b[i]) + kTiny);
    d_a_log[h] += ddecay[i] * decay[i];
    d_a_log_scale[h] += std::abs(ddecay[i] * decay[i]) * (1 + shift / kError);
    d_bias[h] += d_a[i];
    d_bias_scale[h] += std::abs(d_a[i]) * (1 + shift / kError);
  }
  expect_within(data.decay.values(s), decay, decay_off, what + ", decay");
  expect_within(data.rate.values(s), rate, rate_off, what + ", rate");
  da.expect(s, d_a, d_a_off, what + ", da");
  db.expect(s, d_b, d_b_off, what + ", db");
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

TEST(DeltaGates, AgreeWithDoublePrecision) {
  Rig rig;
  for (const Case& c : kCases) {
    check(rig, c, DType::f32, DType::f32, Accumulate::overwrite);
    check(rig, c, DType::f32, DType::f32, Accumulate::add);
    check(rig, c, DType::bf16, DType::f32, Accumulate::add);
    check(rig, c, DType::bf16, DType::bf16, Accumulate::overwrite);
  }
}

TEST(DeltaGates, TheGradientMayWorkInPlaceAndWithoutThoseOfWeights) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Data data(s, {130, 32, 3, 1}, dtype);
    const SpreadHeads da(s, dtype, data.layout, 1, 3), db(s, dtype, data.layout, 2, 3);  // as data.a and data.b
    Ops::DeltaGatesGrad grad{.da = da, .db = db, .ddecay = data.ddecay, .drate = data.drate, .forward = data.call()};
    rig.ops().delta_gates_grad(s, grad);
    grad.da = data.a, grad.db = data.b;
    rig.ops().delta_gates_grad(s, grad);
    EXPECT_EQ(data.a.bytes(s), da.bytes(s));
    EXPECT_EQ(data.b.bytes(s), db.bytes(s));
  }
}

TEST(DeltaGates, ANanStaysOne) {
  Rig rig;
  Stream& s = rig.stream();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const TestTensor a(s, DType::f32, {1, 2}, {nan, 1.0}), b(s, DType::f32, {1, 2}, {1.0, nan});
  const TestTensor zero(s, DType::f32, {2}, {0.0, 0.0}), decay(s, DType::f32, {1, 2}), rate(s, DType::f32, {1, 2});
  rig.ops().delta_gates(
      s, {.decay = decay, .rate = rate, .a = {a, 0, 1, 2}, .b = {b, 0, 1, 2}, .a_log = zero, .dt_bias = zero});
  EXPECT_TRUE(std::isnan(decay.values(s)[0]) && !std::isnan(decay.values(s)[1]));
  EXPECT_TRUE(!std::isnan(rate.values(s)[0]) && std::isnan(rate.values(s)[1]));
}

TEST(DeltaGates, TheNumberOfThreadsDoesNotShow) {
  std::vector<std::vector<std::byte>> first;
  for (const int threads : {1, 2, 5}) {
    Rig rig(threads);
    Stream& s = rig.stream();
    const Data data(s, {3333, 32, 3}, DType::bf16);
    const SpreadHeads da(s, DType::bf16, data.layout, 7), db(s, DType::bf16, data.layout, 8);
    const TestTensor da_log(s, DType::f32, {32}), ddt_bias(s, DType::f32, {32});
    rig.ops().delta_gates(s, data.call());
    rig.ops().delta_gates_grad(s, {.da = da,
                                   .db = db,
                                   .da_log = da_log,
                                   .ddt_bias = ddt_bias,
                                   .ddecay = data.ddecay,
                                   .drate = data.drate,
                                   .forward = data.call()});
    const std::vector<std::vector<std::byte>> all = {data.decay.bytes(s), data.rate.bytes(s), da.bytes(s),
                                                     db.bytes(s),         da_log.bytes(s),    ddt_bias.bytes(s)};
    if (first.empty()) first = all;
    EXPECT_EQ(all, first) << threads << " threads";
  }
}

TEST(DeltaGates, RefuseWrongArguments) {
  Rig rig;
  Stream& s = rig.stream();
  const Data data(s, {4, 8, 1}, DType::bf16), fewer(s, {4, 7, 1}, DType::bf16);
  Ops::DeltaGates call = data.call();
  call.b = fewer.b;
  EXPECT_THROW(rig.ops().delta_gates(s, call), Bug);
  call = data.call(), call.decay = fewer.decay;
  EXPECT_THROW(rig.ops().delta_gates(s, call), Bug);
  call = data.call(), call.a_log = data.ddecay;
  EXPECT_THROW(rig.ops().delta_gates(s, call), Bug);
  Ops::DeltaGatesGrad grad{
      .da = data.a, .db = data.b, .ddecay = data.ddecay, .drate = data.drate, .forward = data.call()};
  grad.da_log = data.a_log;  // without ddt_bias
  EXPECT_THROW(rig.ops().delta_gates_grad(s, grad), Bug);
  grad.da_log = Tensor(), grad.drate = fewer.drate;
  EXPECT_THROW(rig.ops().delta_gates_grad(s, grad), Bug);
}

}  // namespace
}  // namespace so::test::delta_gates_test
