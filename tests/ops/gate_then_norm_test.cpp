#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ops/spread_heads.h"
#include "support/instruction_sets.h"
#include "support/rig.h"

namespace so::test::gate_then_norm_test {
namespace {

using Values = std::vector<double>;
// As in gates_test.cpp.
constexpr double kU = 0x1p-24;
constexpr double kGate = 12 * kU;
constexpr double kTiny = 1e4 * static_cast<double>(std::numeric_limits<float>::min());

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double sum_error(std::int64_t head_dim) { return (static_cast<double>(head_dim) / 16 + 24) * kU; }

// Packs of 16 bytes and none, gaps between groups, several blocks of rows, gates at which exp overflows, and groups as
// large as Nemotron's and larger.
struct Case {
  HeadLayout layout;
  double magnitude = 2;
};
const Case kCases[] = {{{1, 1, 1}},       {{3, 2, 33, 1, 2}}, {{130, 3, 64, 64, 64}},  {{70, 8, 512}},
                       {{9, 2, 1024, 8}}, {{5, 2, 300}, 200}, {{66, 3, 38, 3, 1}, 100}};

struct Reference {
  Values out, inv_rms, dx, dgate, dweight;
  Values dx_scale, dgate_scale, dweight_scale;  // sums of magnitudes: what relative errors of the parts are relative to
};

Reference reference(const HeadLayout& layout, const Values& x, const Values& gate, const Values& dout,
                    const Values& weight, double offset, double epsilon) {
  const auto width = static_cast<std::size_t>(layout.head_dim);
  Reference ref;
  ref.dweight.resize(weight.size()), ref.dweight_scale.resize(weight.size());
  for (std::size_t at = 0; at < x.size(); at += width) {
    const std::size_t head = at / width % static_cast<std::size_t>(layout.heads) * width;
    Values y;
    double squares = 0, mean = 0, mean_scale = 0;
    for (std::size_t i = 0; i < width; ++i) {
      y.push_back(x[at + i] * gate[at + i] * sigmoid(gate[at + i]));
      squares += y[i] * y[i];
    }
    const double r = 1 / std::sqrt(squares / static_cast<double>(width) + epsilon);
    ref.inv_rms.push_back(r);
    for (std::size_t i = 0; i < width; ++i) {
      const double u = y[i] * r, w = weight[head + i] + offset;
      ref.out.push_back(u * w);
      ref.dweight[head + i] += dout[at + i] * u;
      ref.dweight_scale[head + i] += std::abs(dout[at + i] * u);
      mean += dout[at + i] * w * u / static_cast<double>(width);
      mean_scale += std::abs(dout[at + i] * w * u) / static_cast<double>(width);
    }
    for (std::size_t i = 0; i < width; ++i) {
      const double z = gate[at + i], s = sigmoid(z), u = y[i] * r, g = dout[at + i] * (weight[head + i] + offset);
      const double dy = r * (g - u * mean), dy_scale = r * (std::abs(g) + std::abs(u) * mean_scale);
      ref.dx.push_back(dy * z * s);
      ref.dx_scale.push_back(dy_scale * std::abs(z) * s);
      ref.dgate.push_back(dy * x[at + i] * (s + z * s * sigmoid(-z)));
      ref.dgate_scale.push_back(dy_scale * std::abs(x[at + i]) * s * (1 + std::abs(z) * sigmoid(-z)));
    }
  }
  return ref;
}

struct Data {
  Data(Stream& s, const HeadLayout& layout_, DType dtype, double magnitude = 2, float offset = 0)
      : layout(layout_),
        x(s, dtype, layout, 1),
        gate(s, dtype, layout, 2, magnitude),
        dout(s, dtype, layout, 3),
        weight(random_tensor(s, dtype, {layout.heads * layout.head_dim}, 8, 2.0)),
        inv_rms(s, DType::f32, {layout.n, layout.heads}),
        norm{weight, 1e-6f, inv_rms, offset} {}
  HeadLayout layout;
  SpreadHeads x, gate, dout;
  TestTensor weight, inv_rms;
  HeadNorm norm;
};

void check(Rig& rig, const Case& c, DType dtype, DType weight_grad, Accumulate mode, float offset) {
  Stream& s = rig.stream();
  const std::string what = fmt::format("{} {}, offset {}", c.layout.name(), name_of(dtype), offset);
  const Data data(s, c.layout, dtype, c.magnitude, offset);
  const SpreadHeads out(s, dtype, c.layout, 4), dx(s, dtype, c.layout, 5), dgate(s, dtype, c.layout, 6),
      normed(s, dtype, c.layout, 7);
  const TestTensor dweight = random_tensor(s, weight_grad, {c.layout.heads * c.layout.head_dim}, 9);
  const Values before = dweight.values(s);
  rig.ops().gate_then_norm(s, out, data.x, data.gate, data.norm);
  rig.ops().gate_then_norm_grad(s, {.dx = dx,
                                    .dgate = dgate,
                                    .normed = normed,
                                    .dweight = dweight,
                                    .dweight_mode = mode,
                                    .dout = data.dout,
                                    .x = data.x,
                                    .gate = data.gate,
                                    .norm = data.norm});
  Reference ref = reference(c.layout, data.x.values(s), data.gate.values(s), data.dout.values(s), data.weight.values(s),
                            offset, data.norm.epsilon);
  // The gate's error is in every term of a sum and in the factors.
  const double error = sum_error(c.layout.head_dim) + 4 * kGate;
  // 1 - sigmoid of bf16 data on a GPU is good to 2^-21, not relatively.
  const double difference = on_gpu() && dtype == DType::bf16 ? 0x1p-21 * c.magnitude : 0;
  Values out_off, dx_off, dgate_off;
  for (std::size_t i = 0; i < ref.out.size(); ++i) {
    out_off.push_back((error + unit_roundoff(dtype)) * std::abs(ref.out[i]) + kTiny);
    dx_off.push_back(error * ref.dx_scale[i] + unit_roundoff(dtype) * std::abs(ref.dx[i]) + kTiny);
    dgate_off.push_back((error + difference) * ref.dgate_scale[i] + unit_roundoff(dtype) * std::abs(ref.dgate[i]) +
                        kTiny);
  }
  expect_close(data.inv_rms.values(s), ref.inv_rms, error, 0, what + ", inv_rms");
  out.expect(s, ref.out, out_off, what + ", out");
  normed.expect(s, out.values(s), Values(ref.out.size(), 0.0), what + ", normed");
  dx.expect(s, ref.dx, dx_off, what + ", dx");
  dgate.expect(s, ref.dgate, dgate_off, what + ", dgate");
  for (std::size_t i = 0; i < ref.dweight.size(); ++i) {
    if (mode == Accumulate::add) ref.dweight[i] += before[i];
    // As in rotary_test.cpp: 64 rows add up in a block. A term has the errors of the norm besides.
    ref.dweight_scale[i] =
        (69 * kU + error) * ref.dweight_scale[i] + unit_roundoff(weight_grad) * std::abs(ref.dweight[i]) + kTiny;
  }
  expect_within(dweight.values(s), ref.dweight, ref.dweight_scale, what + ", dweight");
}

TEST(GateThenNorm, AgreesWithDoublePrecision) {
  Rig rig;
  for_each_instruction_set([&] {
    for (const Case& c : kCases) {
      check(rig, c, DType::f32, DType::f32, Accumulate::overwrite, 0);
      check(rig, c, DType::f32, DType::f32, Accumulate::add, 1);
      check(rig, c, DType::bf16, DType::f32, Accumulate::add, 0);
      check(rig, c, DType::bf16, DType::bf16, Accumulate::overwrite, 1);
    }
  });
}

// Differences of the forward pass in double: independent of the derivative's formula.
TEST(GateThenNorm, TheGradientAgreesWithFiniteDifferences) {
  Rig rig;
  Stream& s = rig.stream();
  const HeadLayout layout{2, 2, 13};
  const double step = 1e-5;
  const Data data(s, layout, DType::f32, 3);
  const SpreadHeads out(s, DType::f32, layout, 4), dx(s, DType::f32, layout, 5), dgate(s, DType::f32, layout, 6);
  const TestTensor dweight(s, DType::f32, {26});
  rig.ops().gate_then_norm(s, out, data.x, data.gate, data.norm);
  rig.ops().gate_then_norm_grad(s, {.dx = dx,
                                    .dgate = dgate,
                                    .normed = {},
                                    .dweight = dweight,
                                    .dout = data.dout,
                                    .x = data.x,
                                    .gate = data.gate,
                                    .norm = data.norm});
  Values xs = data.x.values(s), gates = data.gate.values(s), weights = data.weight.values(s);
  const Values dy = data.dout.values(s);
  const auto slopes = [&](Values& of) {
    Values result;
    for (double& at : of) {
      const double kept = at;
      double loss[2] = {0, 0};
      for (const int side : {0, 1}) {
        at = kept + (2 * side - 1) * step;
        const Values y = reference(layout, xs, gates, dy, weights, 0, data.norm.epsilon).out;
        for (std::size_t i = 0; i < y.size(); ++i) loss[side] += y[i] * dy[i];
      }
      at = kept;
      result.push_back((loss[1] - loss[0]) / (2 * step));
    }
    return result;
  };
  // Gradients of order 1 in fp32, differences good to step^2 = 1e-10 and 1e-15 / step.
  expect_close(dx.values(s), slopes(xs), 0, 2e-5, "dx");
  expect_close(dgate.values(s), slopes(gates), 0, 2e-5, "dgate");
  expect_close(dweight.values(s), slopes(weights), 0, 2e-5, "dweight");
}

TEST(GateThenNorm, TheGradientMayWorkInPlace) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Case& c : kCases) {
      const Data data(s, c.layout, dtype);
      const SpreadHeads dx(s, dtype, c.layout, 3), dgate(s, dtype, c.layout, 2, 2), out(s, dtype, c.layout, 4);
      const std::int64_t columns = c.layout.heads * c.layout.head_dim;
      const TestTensor first(s, DType::f32, {columns}), second(s, DType::f32, {columns});
      rig.ops().gate_then_norm(s, out, data.x, data.gate, data.norm);
      Ops::GateThenNormGrad grad{.dx = dx,
                                 .dgate = dgate,
                                 .normed = {},
                                 .dweight = first,
                                 .dout = data.dout,
                                 .x = data.x,
                                 .gate = data.gate,
                                 .norm = data.norm};
      rig.ops().gate_then_norm_grad(s, grad);
      grad.dx = data.dout, grad.dgate = data.gate, grad.dweight = second;
      rig.ops().gate_then_norm_grad(s, grad);
      EXPECT_EQ(data.dout.bytes(s), dx.bytes(s)) << c.layout.name();
      EXPECT_EQ(data.gate.bytes(s), dgate.bytes(s)) << c.layout.name();
      EXPECT_EQ(second.bytes(s), first.bytes(s)) << c.layout.name();
    }
}

TEST(GateThenNorm, TheNumberOfThreadsDoesNotShow) {
  std::vector<std::vector<std::byte>> first;
  for (const int threads : {1, 2, 5}) {
    Rig rig(threads);
    Stream& s = rig.stream();
    const HeadLayout layout{333, 5, 74, 3, 4};
    const Data data(s, layout, DType::bf16);
    const SpreadHeads out(s, DType::bf16, layout, 4), dx(s, DType::bf16, layout, 5), dgate(s, DType::bf16, layout, 6);
    const TestTensor dweight(s, DType::f32, {5 * 74});
    rig.ops().gate_then_norm(s, out, data.x, data.gate, data.norm);
    rig.ops().gate_then_norm_grad(s, {.dx = dx,
                                      .dgate = dgate,
                                      .normed = {},
                                      .dweight = dweight,
                                      .dout = data.dout,
                                      .x = data.x,
                                      .gate = data.gate,
                                      .norm = data.norm});
    const std::vector<std::vector<std::byte>> all = {out.bytes(s), data.inv_rms.bytes(s), dx.bytes(s), dgate.bytes(s),
                                                     dweight.bytes(s)};
    if (first.empty()) first = all;
    EXPECT_EQ(all, first) << threads << " threads";
  }
}

TEST(GateThenNorm, RefusesWrongArguments) {
  Rig rig;
  Stream& s = rig.stream();
  Ops& ops = rig.ops();
  const Data data(s, {4, 2, 8}, DType::bf16);
  const SpreadHeads out(s, DType::bf16, {4, 2, 8}, 3), fewer(s, DType::bf16, {4, 1, 8}, 4);
  const TestTensor shared(s, DType::bf16, {8});
  EXPECT_THROW(ops.gate_then_norm(s, data.x, data.x, data.gate, data.norm), Bug);
  EXPECT_THROW(ops.gate_then_norm(s, out, data.x, fewer, data.norm), Bug);
  EXPECT_THROW(ops.gate_then_norm(s, out, data.x, data.gate, HeadNorm{shared, 1e-6f, data.inv_rms}), Bug);
  EXPECT_THROW(ops.gate_then_norm_grad(s, {.dx = out,
                                           .dgate = data.gate,
                                           .normed = {},
                                           .dweight = shared,
                                           .dout = out,
                                           .x = data.x,
                                           .gate = data.gate,
                                           .norm = data.norm}),
               Bug);
}

}  // namespace
}  // namespace so::test::gate_then_norm_test
