// The factors of experts, against plain loops in double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/routings.h"

namespace so::test::expert_scale_test {
namespace {

using Values = std::vector<double>;
constexpr double kU = 0x1p-24;

struct Case {
  std::int64_t tokens, choices, experts;
  Load load;
};
const Case kCases[] = {{1, 1, 1, Load::even},       {5, 2, 4, Load::even},         {37, 4, 10, Load::skewed},
                       {300, 8, 128, Load::skewed}, {700, 2, 6, Load::one_expert}, {0, 2, 5, Load::even}};

void check_expert_scale(Rig& rig, const Case& c, DType dtype, DType gradient, Accumulate mode) {
  Stream& s = rig.stream();
  const HostRouting h = random_routing(c.tokens, c.choices, c.experts, c.load, 1);
  const RoutingTensors routing = h.on_device(s);
  const std::int64_t rows = c.tokens * c.choices;
  const TestTensor scale = random_tensor(s, dtype, {c.experts}, 2), dout = random_tensor(s, DType::f32, {rows}, 3);
  const TestTensor out(s, DType::f32, {rows}), dweights(s, DType::f32, {rows});
  const TestTensor dscale = random_tensor(s, gradient, {c.experts}, 4);
  const Values factors = scale.values(s), d = dout.values(s), before = dscale.values(s);
  rig.ops().scale_experts(s, out, scale, routing);
  rig.ops().scale_experts_grad(
      s,
      {.dweights = dweights, .dscale = dscale, .dscale_mode = mode, .dout = dout, .scale = scale, .routing = routing});
  Values expected, allowed, dw, dw_allowed, sums(before.size()), sizes(before.size());
  if (mode == Accumulate::add) sums = before;
  for (std::size_t e = 0; e < sums.size(); ++e) sizes[e] = std::abs(sums[e]);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto i = static_cast<std::size_t>(r), e = static_cast<std::size_t>(h.expert_of_row(r));
    expected.push_back(h.weights[i] * factors[e]);
    allowed.push_back(2 * kU * std::abs(expected[i]));
    dw.push_back(d[i] * factors[e]);
    dw_allowed.push_back(2 * kU * std::abs(dw[i]));
    sums[e] += d[i] * h.weights[i];
    sizes[e] += std::abs(d[i] * h.weights[i]);
  }
  Values sums_allowed;
  for (std::size_t e = 0; e < sums.size(); ++e)
    sums_allowed.push_back(kU * (8 + 4 * std::sqrt(static_cast<double>(rows))) * sizes[e] +
                           unit_roundoff(gradient) * std::abs(sums[e]));
  expect_within(out.values(s), expected, allowed, "out");
  expect_within(dweights.values(s), dw, dw_allowed, "dweights");
  expect_within(dscale.values(s), sums, sums_allowed, "dscale");
}

TEST(ExpertScale, AgreesWithDoublePrecision) {
  Rig rig(3);
  for (const Case& c : kCases)
    for (const Accumulate mode : {Accumulate::overwrite, Accumulate::add}) {
      check_expert_scale(rig, c, DType::f32, DType::f32, mode);
      check_expert_scale(rig, c, DType::bf16, DType::f32, mode);
      check_expert_scale(rig, c, DType::bf16, DType::bf16, mode);
    }
}

TEST(ExpertScale, MayWorkInPlace) {
  Rig rig;
  Stream& s = rig.stream();
  const RoutingTensors routing = random_routing(37, 4, 10, Load::skewed, 1).on_device(s);
  const TestTensor scale = random_tensor(s, DType::f32, {10}, 2), dout = random_tensor(s, DType::f32, {148}, 3);
  const TestTensor dweights(s, DType::f32, {148}), dscale(s, DType::f32, {10});
  rig.ops().scale_experts_grad(
      s, {.dweights = dweights, .dscale = dscale, .dout = dout, .scale = scale, .routing = routing});
  rig.ops().scale_experts_grad(s,
                               {.dweights = dout, .dscale = dscale, .dout = dout, .scale = scale, .routing = routing});
  EXPECT_EQ(dout.bytes(s), dweights.bytes(s));
  EXPECT_THROW(rig.ops().scale_experts(s, dout, TestTensor(s, DType::f32, {9}), routing), Bug);
}

}  // namespace
}  // namespace so::test::expert_scale_test
