#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ops/spread_heads.h"
#include "support/instruction_sets.h"
#include "support/rig.h"

namespace so::test::gates_test {
namespace {

using Values = std::vector<double>;
constexpr double kU = 0x1p-24;  // unit roundoff of the arithmetic inside
// As in activation_test.cpp: the exponential is good to 4 roundoffs, and no result takes more than 8 operations more.
constexpr double kGate = 12 * kU;
// Below the smallest normal number an fp32 exponential loses digits, or is 0; it is multiplied by up to 1e4 here.
constexpr double kTiny = 1e4 * static_cast<double>(std::numeric_limits<float>::min());

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Packs of 16 bytes and none, gaps between heads, several blocks of rows, gates at which exp overflows.
struct Case {
  HeadLayout layout;
  double magnitude = 2;
};
const Case kCases[] = {{{1, 1, 1}},    {{3, 2, 33, 1, 2}},         {{130, 3, 64, 64, 64}},
                       {{70, 4, 128}}, {{5, 2, 256, 8, 256}, 200}, {{66, 3, 38, 3, 1}, 100}};

void check_sigmoid_gate(Rig& rig, const Case& c, DType dtype) {
  Stream& s = rig.stream();
  const std::string what = fmt::format("{} {}", c.layout.name(), name_of(dtype));
  const SpreadHeads x(s, dtype, c.layout, 1), gate(s, dtype, c.layout, 2, c.magnitude), dout(s, dtype, c.layout, 3);
  const SpreadHeads out(s, dtype, c.layout, 4), dx(s, dtype, c.layout, 5), dgate(s, dtype, c.layout, 6),
      gated(s, dtype, c.layout, 7);
  rig.ops().sigmoid_gate(s, out, x, gate);
  rig.ops().sigmoid_gate_grad(s, {.dx = dx, .dgate = dgate, .gated = gated, .dout = dout, .x = x, .gate = gate});
  const Values xs = x.values(s), gates = gate.values(s), dy = dout.values(s);
  Values y, y_off, d_x, d_x_off, d_gate, d_gate_off;
  for (std::size_t i = 0; i < xs.size(); ++i) {
    const double g = sigmoid(gates[i]), opposite = sigmoid(-gates[i]);
    y.push_back(xs[i] * g);
    y_off.push_back((kGate + unit_roundoff(dtype)) * std::abs(y[i]) + kTiny);
    d_x.push_back(dy[i] * g);
    d_x_off.push_back((kGate + unit_roundoff(dtype)) * std::abs(d_x[i]) + kTiny);
    d_gate.push_back(dy[i] * xs[i] * g * opposite);
    // On a GPU 1 - sigmoid of bf16 data is good to 2^-21, not relatively.
    const double difference = on_gpu() && dtype == DType::bf16 ? 0x1p-21 * std::abs(dy[i] * xs[i] * g) : 0;
    d_gate_off.push_back((kGate + unit_roundoff(dtype)) * std::abs(d_gate[i]) + difference + kTiny);
  }
  out.expect(s, y, y_off, what + ", out");
  gated.expect(s, out.values(s), Values(y.size(), 0.0), what + ", gated");
  dx.expect(s, d_x, d_x_off, what + ", dx");
  dgate.expect(s, d_gate, d_gate_off, what + ", dgate");
}

TEST(SigmoidGate, AgreesWithDoublePrecision) {
  Rig rig;
  for_each_instruction_set([&] {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Case& c : kCases) check_sigmoid_gate(rig, c, dtype);
  });
}

TEST(SigmoidGate, MayWorkInPlace) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Case& c : kCases) {
      const auto make = [&](unsigned seed) { return SpreadHeads(s, dtype, c.layout, seed); };
      const SpreadHeads x = make(1), gate = make(2), dout = make(3), out = make(1), dx = make(3), dgate = make(2);
      rig.ops().sigmoid_gate(s, out, x, gate);
      rig.ops().sigmoid_gate_grad(s, {.dx = dx, .dgate = dgate, .gated = {}, .dout = dout, .x = x, .gate = gate});
      const SpreadHeads kept = make(1);
      rig.ops().sigmoid_gate(s, kept, kept, gate);
      EXPECT_EQ(kept.bytes(s), out.bytes(s)) << c.layout.name();
      rig.ops().sigmoid_gate_grad(s, {.dx = dout, .dgate = gate, .gated = x, .dout = dout, .x = x, .gate = gate});
      EXPECT_EQ(dout.bytes(s), dx.bytes(s)) << c.layout.name();
      EXPECT_EQ(gate.bytes(s), dgate.bytes(s)) << c.layout.name();
      EXPECT_EQ(x.bytes(s), out.bytes(s)) << c.layout.name();
    }
}

// A norm's sum over a head, as in norm_test.cpp.
double sum_error(std::int64_t head_dim) { return (static_cast<double>(head_dim) / 16 + 24) * kU; }

struct NormReference {
  Values out, inv_rms, dx, dgate, dweight;
  Values dx_scale, dgate_scale, dweight_scale;  // sums of magnitudes: what relative errors of the parts are relative to
};

NormReference gated_norm(const Values& x, const Values& gate, const Values& dout, const Values& weight, double offset,
                         double epsilon) {
  const std::size_t width = weight.size();
  NormReference ref;
  ref.dweight.resize(width), ref.dweight_scale.resize(width);
  for (std::size_t at = 0; at < x.size(); at += width) {
    double squares = 0, mean = 0, mean_scale = 0;
    for (std::size_t i = 0; i < width; ++i) squares += x[at + i] * x[at + i];
    const double r = 1 / std::sqrt(squares / static_cast<double>(width) + epsilon);
    ref.inv_rms.push_back(r);
    for (std::size_t i = 0; i < width; ++i) {
      const double z = gate[at + i], s = sigmoid(z), w = weight[i] + offset, u = x[at + i] * r;
      ref.out.push_back(u * w * z * s);
      ref.dgate.push_back(dout[at + i] * u * w * (s + z * s * sigmoid(-z)));
      ref.dgate_scale.push_back(std::abs(dout[at + i] * u * w) * s * (1 + std::abs(z) * sigmoid(-z)));
      ref.dweight[i] += dout[at + i] * z * s * u;
      ref.dweight_scale[i] += std::abs(dout[at + i] * z * s * u);
      mean += dout[at + i] * z * s * w * u / static_cast<double>(width);
      mean_scale += std::abs(dout[at + i] * z * s * w * u) / static_cast<double>(width);
    }
    for (std::size_t i = 0; i < width; ++i) {
      const double z = gate[at + i], g = dout[at + i] * z * sigmoid(z) * (weight[i] + offset), u = x[at + i] * r;
      ref.dx.push_back(r * (g - u * mean));
      ref.dx_scale.push_back(r * (std::abs(g) + std::abs(u) * mean_scale));
    }
  }
  return ref;
}

void check_gated_norm(Rig& rig, const Case& c, DType dtype, DType weight_grad, Accumulate mode, float offset) {
  Stream& s = rig.stream();
  const std::string what = fmt::format("{} {}, offset {}", c.layout.name(), name_of(dtype), offset);
  const SpreadHeads x(s, dtype, c.layout, 1), gate(s, dtype, c.layout, 2, c.magnitude), dout(s, dtype, c.layout, 3);
  const SpreadHeads out(s, dtype, c.layout, 4), dx(s, dtype, c.layout, 5), dgate(s, dtype, c.layout, 6),
      normed(s, dtype, c.layout, 7);
  const std::int64_t head_dim = c.layout.head_dim;
  const TestTensor weight = random_tensor(s, dtype, {head_dim}, 8, 2.0);
  const TestTensor dweight = random_tensor(s, weight_grad, {head_dim}, 9);
  const TestTensor inv_rms(s, DType::f32, {c.layout.n, c.layout.heads});
  const HeadNorm norm{weight, 1e-6f, inv_rms, offset};
  const Values before = dweight.values(s);
  rig.ops().gated_norm(s, out, x, gate, norm);
  rig.ops().gated_norm_grad(s, {.dx = dx,
                                .dgate = dgate,
                                .normed = normed,
                                .dweight = dweight,
                                .dweight_mode = mode,
                                .dout = dout,
                                .x = x,
                                .gate = gate,
                                .norm = norm});
  NormReference ref = gated_norm(x.values(s), gate.values(s), dout.values(s), weight.values(s), offset, norm.epsilon);
  const double error = sum_error(head_dim) + kGate;
  Values out_off, dx_off, dgate_off;
  for (std::size_t i = 0; i < ref.out.size(); ++i) {
    out_off.push_back((error + unit_roundoff(dtype)) * std::abs(ref.out[i]) + kTiny);
    dx_off.push_back(error * ref.dx_scale[i] + unit_roundoff(dtype) * std::abs(ref.dx[i]) + kTiny);
    // 1 - sigmoid of bf16 data on a GPU, as above.
    const double difference = on_gpu() && dtype == DType::bf16 ? 0x1p-21 * c.magnitude * ref.dgate_scale[i] : 0;
    dgate_off.push_back(error * ref.dgate_scale[i] + unit_roundoff(dtype) * std::abs(ref.dgate[i]) + difference +
                        kTiny);
  }
  expect_close(inv_rms.values(s), ref.inv_rms, sum_error(head_dim), 0, what + ", inv_rms");
  out.expect(s, ref.out, out_off, what + ", out");
  normed.expect(s, out.values(s), Values(ref.out.size(), 0.0), what + ", normed");
  dx.expect(s, ref.dx, dx_off, what + ", dx");
  dgate.expect(s, ref.dgate, dgate_off, what + ", dgate");
  for (std::size_t i = 0; i < ref.dweight.size(); ++i) {
    if (mode == Accumulate::add) ref.dweight[i] += before[i];
    // As in rotary_test.cpp: 64 rows of heads add up in a block. A term has the gate's error besides.
    ref.dweight_scale[i] = ((64 * static_cast<double>(c.layout.heads) + 5) * kU + kGate) * ref.dweight_scale[i] +
                           unit_roundoff(weight_grad) * std::abs(ref.dweight[i]);
  }
  expect_within(dweight.values(s), ref.dweight, ref.dweight_scale, what + ", dweight");
}

TEST(GatedNorm, AgreesWithDoublePrecision) {
  Rig rig;
  for_each_instruction_set([&] {
    for (const Case& c : kCases) {
      check_gated_norm(rig, c, DType::f32, DType::f32, Accumulate::overwrite, 0);
      check_gated_norm(rig, c, DType::f32, DType::f32, Accumulate::add, 1);
      check_gated_norm(rig, c, DType::bf16, DType::f32, Accumulate::add, 0);
      check_gated_norm(rig, c, DType::bf16, DType::bf16, Accumulate::overwrite, 1);
    }
  });
}

// Differences of the forward pass in double: independent of the derivative's formula.
TEST(GatedNorm, TheGradientAgreesWithFiniteDifferences) {
  Rig rig;
  Stream& s = rig.stream();
  const HeadLayout layout{2, 2, 13};
  const double step = 1e-5;
  const SpreadHeads x(s, DType::f32, layout, 1), gate(s, DType::f32, layout, 2, 3), dout(s, DType::f32, layout, 3);
  const SpreadHeads out(s, DType::f32, layout, 4), dx(s, DType::f32, layout, 5), dgate(s, DType::f32, layout, 6);
  const TestTensor weight = random_tensor(s, DType::f32, {13}, 8, 2.0), dweight(s, DType::f32, {13}),
                   inv_rms(s, DType::f32, {2, 2});
  const HeadNorm norm{weight, 1e-6f, inv_rms};
  rig.ops().gated_norm(s, out, x, gate, norm);
  rig.ops().gated_norm_grad(
      s,
      {.dx = dx, .dgate = dgate, .normed = {}, .dweight = dweight, .dout = dout, .x = x, .gate = gate, .norm = norm});
  Values xs = x.values(s), gates = gate.values(s), weights = weight.values(s);
  const Values dy = dout.values(s);
  const auto slopes = [&](Values& of) {
    Values result;
    for (double& at : of) {
      const double kept = at;
      double loss[2] = {0, 0};
      for (const int side : {0, 1}) {
        at = kept + (2 * side - 1) * step;
        const Values y = gated_norm(xs, gates, dy, weights, 0, norm.epsilon).out;
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

TEST(GatedNorm, TheGradientMayWorkInPlace) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Case& c : kCases) {
      const auto make = [&](unsigned seed) { return SpreadHeads(s, dtype, c.layout, seed); };
      const SpreadHeads x = make(1), gate = make(2), dout = make(3), dx = make(3), dgate = make(2), out = make(4);
      const TestTensor weight = random_tensor(s, dtype, {c.layout.head_dim}, 8),
                       first(s, DType::f32, {c.layout.head_dim}), second(s, DType::f32, {c.layout.head_dim}),
                       inv_rms(s, DType::f32, {c.layout.n, c.layout.heads});
      const HeadNorm norm{weight, 1e-6f, inv_rms};
      rig.ops().gated_norm(s, out, x, gate, norm);
      Ops::GatedNormGrad grad{
          .dx = dx, .dgate = dgate, .normed = {}, .dweight = first, .dout = dout, .x = x, .gate = gate, .norm = norm};
      rig.ops().gated_norm_grad(s, grad);
      grad.dx = dout, grad.dgate = gate, grad.dweight = second;
      rig.ops().gated_norm_grad(s, grad);
      EXPECT_EQ(dout.bytes(s), dx.bytes(s)) << c.layout.name();
      EXPECT_EQ(gate.bytes(s), dgate.bytes(s)) << c.layout.name();
      EXPECT_EQ(second.bytes(s), first.bytes(s)) << c.layout.name();
    }
}

TEST(GatedNorm, TheNumberOfThreadsDoesNotShow) {
  std::vector<std::vector<std::byte>> first;
  for (const int threads : {1, 2, 5}) {
    Rig rig(threads);
    Stream& s = rig.stream();
    const HeadLayout layout{333, 5, 74, 3, 4};
    const auto make = [&](unsigned seed) { return SpreadHeads(s, DType::bf16, layout, seed); };
    const SpreadHeads x = make(1), gate = make(2), dout = make(3), out = make(4), dx = make(5), dgate = make(6);
    const TestTensor weight = random_tensor(s, DType::bf16, {74}, 8), dweight(s, DType::f32, {74}),
                     inv_rms(s, DType::f32, {333, 5});
    const HeadNorm norm{weight, 1e-6f, inv_rms};
    rig.ops().gated_norm(s, out, x, gate, norm);
    rig.ops().gated_norm_grad(
        s,
        {.dx = dx, .dgate = dgate, .normed = {}, .dweight = dweight, .dout = dout, .x = x, .gate = gate, .norm = norm});
    const std::vector<std::vector<std::byte>> all = {out.bytes(s), inv_rms.bytes(s), dx.bytes(s), dgate.bytes(s),
                                                     dweight.bytes(s)};
    if (first.empty()) first = all;
    EXPECT_EQ(all, first) << threads << " threads";
  }
}

TEST(Gates, RefuseWrongArguments) {
  Rig rig;
  Stream& s = rig.stream();
  Ops& ops = rig.ops();
  const SpreadHeads x(s, DType::bf16, {4, 2, 8}, 1), gate(s, DType::bf16, {4, 2, 8}, 2),
      out(s, DType::bf16, {4, 2, 8}, 3);
  const SpreadHeads fewer(s, DType::bf16, {4, 1, 8}, 4), single(s, DType::f32, {4, 2, 8}, 5);
  const TestTensor weight(s, DType::bf16, {8}), narrow(s, DType::bf16, {7}), inv_rms(s, DType::f32, {4, 2});
  const HeadNorm norm{weight, 1e-6f, inv_rms};
  EXPECT_THROW(ops.sigmoid_gate(s, out, x, fewer), Bug);
  EXPECT_THROW(ops.sigmoid_gate(s, single, x, gate), Bug);
  Heads overlapping = x, beyond = x;
  overlapping.stride = 7;
  beyond.stride = 9;
  EXPECT_THROW(ops.sigmoid_gate(s, out, overlapping, gate), Bug);
  EXPECT_THROW(ops.sigmoid_gate(s, out, beyond, gate), Bug);
  EXPECT_THROW(ops.sigmoid_gate_grad(s, {.dx = out, .dgate = fewer, .gated = {}, .dout = out, .x = x, .gate = gate}),
               Bug);
  EXPECT_THROW(ops.gated_norm(s, x, x, gate, norm), Bug);
  EXPECT_THROW(ops.gated_norm(s, out, x, gate, HeadNorm{narrow, 1e-6f, inv_rms}), Bug);
  EXPECT_THROW(ops.gated_norm(s, out, x, gate, HeadNorm{weight, 1e-6f, weight}), Bug);
  EXPECT_THROW(
      ops.gated_norm_grad(
          s,
          {.dx = out, .dgate = gate, .normed = {}, .dweight = narrow, .dout = out, .x = x, .gate = gate, .norm = norm}),
      Bug);
}

}  // namespace
}  // namespace so::test::gates_test
