#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/instruction_sets.h"
#include "support/random_tensors.h"
#include "support/rig.h"

namespace so::test::row_gate_test {
namespace {

using Values = std::vector<double>;
constexpr double kU = 0x1p-24;  // unit roundoff of the arithmetic inside

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

struct Case {
  std::int64_t rows, width;
  double magnitude = 1;
};
// Packs of 16 bytes and none, several blocks of rows, products at which exp overflows, no rows.
const Case kCases[] = {{1, 1},      {3, 33},         {130, 64},   {70, 128, 3}, {1100, 256},
                       {66, 38, 2}, {9, 2051, 0.05}, {5, 64, 60}, {0, 16}};

struct RowGateReference {
  Values gates, gates_allowed, dx, dx_allowed, dweight, dweight_allowed;
};

// The sum of a row's product may be off by some roundoffs of the sum of magnitudes, and moves the gate by its slope,
// which is at most 1/4. What is added to dx rounds once more to its format.
RowGateReference reference(const Case& c, DType dtype, const Values& x, const Values& w, const Values& dgates,
                           const Values& dx) {
  const double sums = (4 * std::sqrt(static_cast<double>(c.width)) + 24) * kU, round = unit_roundoff(dtype);
  RowGateReference to;
  to.dweight.resize(at(c.width)), to.dweight_allowed.resize(at(c.width));
  to.dx = dx, to.dx_allowed.resize(dx.size());
  Values magnitudes(at(c.width));
  for (std::int64_t n = 0; n < c.rows; ++n) {
    double product = 0, magnitude = 0;
    for (std::int64_t i = 0; i < c.width; ++i) {
      product += x[at(n * c.width + i)] * w[at(i)];
      magnitude += std::abs(x[at(n * c.width + i)] * w[at(i)]);
    }
    const double gate = 1 / (1 + std::exp(-product)),
                 off = sums * magnitude / 4 + 8 * kU * gate + std::numeric_limits<float>::min();
    to.gates.push_back(gate);
    to.gates_allowed.push_back(off);
    const double slope = dgates[at(n)] * gate / (1 + std::exp(product)),
                 slope_off = std::abs(dgates[at(n)]) * (off + 4 * kU * gate);
    for (std::int64_t i = 0; i < c.width; ++i) {
      const std::int64_t element = n * c.width + i;
      to.dx[at(element)] += slope * w[at(i)];
      to.dx_allowed[at(element)] =
          (slope_off + 4 * kU * std::abs(slope)) * std::abs(w[at(i)]) + (round + 2 * kU) * std::abs(to.dx[at(element)]);
      to.dweight[at(i)] += slope * x[at(element)];
      to.dweight_allowed[at(i)] += (slope_off + 80 * kU * std::abs(slope)) * std::abs(x[at(element)]);
    }
  }
  return to;
}

void check(Rig& rig, const Case& c, DType dtype, DType weight_grad, Accumulate mode) {
  Stream& s = rig.stream();
  const std::string what = fmt::format("{} rows of {} {}", c.rows, c.width, name_of(dtype));
  const TestTensor x = random_tensor(s, dtype, {c.rows, c.width}, 1, c.magnitude);
  const TestTensor weight = random_tensor(s, dtype, {1, c.width}, 2);
  const TestTensor dgates = random_tensor(s, DType::f32, {c.rows}, 3), gates(s, DType::f32, {c.rows});
  const TestTensor dx = random_tensor(s, dtype, {c.rows, c.width}, 4);
  const TestTensor dweight = random_tensor(s, weight_grad, {1, c.width}, 5);
  RowGateReference expected = reference(c, dtype, x.values(s), weight.values(s), dgates.values(s), dx.values(s));
  const Values before = dweight.values(s);
  rig.ops().row_gate(s, gates, x, weight);
  rig.ops().row_gate_grad(
      s,
      {.dx = dx, .dweight = dweight, .dweight_mode = mode, .dgates = dgates, .gates = gates, .x = x, .weight = weight});
  expect_within(gates.values(s), expected.gates, expected.gates_allowed, what + ", gates");
  expect_within(dx.values(s), expected.dx, expected.dx_allowed, what + ", dx");
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (mode == Accumulate::add) expected.dweight[i] += before[i];
    expected.dweight_allowed[i] += (unit_roundoff(weight_grad) + kU) * std::abs(expected.dweight[i]);
  }
  expect_within(dweight.values(s), expected.dweight, expected.dweight_allowed, what + ", dweight");
}

TEST(RowGate, AgreesWithDoublePrecision) {
  Rig rig(3);
  for_each_instruction_set([&] {
    for (const Case& c : kCases)
      for (const Accumulate mode : {Accumulate::overwrite, Accumulate::add}) {
        check(rig, c, DType::f32, DType::f32, mode);
        check(rig, c, DType::bf16, DType::f32, mode);
        check(rig, c, DType::bf16, DType::bf16, mode);
      }
  });
}

TEST(RowGate, AFrozenWeightNeedsNoGradient) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto grads = [&](Tensor dweight) {
      const TestTensor x = random_tensor(s, dtype, {70, 40}, 1), weight = random_tensor(s, dtype, {1, 40}, 2);
      const TestTensor dgates = random_tensor(s, DType::f32, {70}, 3), gates(s, DType::f32, {70});
      const TestTensor dx = random_tensor(s, dtype, {70, 40}, 4);
      rig.ops().row_gate(s, gates, x, weight);
      rig.ops().row_gate_grad(
          s, {.dx = dx, .dweight = dweight, .dgates = dgates, .gates = gates, .x = x, .weight = weight});
      return dx.bytes(s);
    };
    const TestTensor dweight(s, DType::f32, {1, 40});
    EXPECT_EQ(grads(Tensor()), grads(dweight));
  }
}

TEST(RowGate, RefusesOtherShapes) {
  Rig rig;
  Stream& s = rig.stream();
  const TestTensor x(s, DType::f32, {4, 8}), weight(s, DType::f32, {1, 8}), gates(s, DType::f32, {4}),
      narrow(s, DType::f32, {1, 7}), fewer(s, DType::f32, {3});
  EXPECT_THROW(rig.ops().row_gate(s, gates, x, narrow), Bug);
  EXPECT_THROW(rig.ops().row_gate(s, fewer, x, weight), Bug);
  EXPECT_THROW(rig.ops().row_gate_grad(s, {.dx = x, .dgates = fewer, .gates = gates, .x = x, .weight = weight}), Bug);
}

}  // namespace
}  // namespace so::test::row_gate_test
