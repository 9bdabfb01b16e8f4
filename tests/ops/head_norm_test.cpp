// The RMS norm of heads without a weight, against plain loops in double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/spread_heads.h"
#include "support/instruction_sets.h"
#include "support/rig.h"

namespace so::test::head_norm_test {
namespace {

using Values = std::vector<double>;
constexpr double kU = 0x1p-24;  // unit roundoff of the arithmetic inside

// Packs of 16 bytes and none, gaps between heads, heads of every size that a kernel has a way of its own for.
const HeadLayout kLayouts[] = {{1, 1, 1},           {3, 2, 33, 1, 2},  {130, 3, 64, 64, 64}, {70, 4, 128},
                               {5, 2, 256, 8, 256}, {66, 3, 38, 3, 1}, {9, 2, 512},          {4, 1, 1000}};

struct HeadNormReference {
  Values out, inv_rms, din;
  HeadNormReference(const Values& x, const Values& dout, const HeadLayout& l, double epsilon)
      : out(x.size()), din(x.size()) {
    const auto d = static_cast<std::size_t>(l.head_dim);
    for (std::size_t at = 0; at < x.size(); at += d) {
      double squares = 0, dot = 0;
      for (std::size_t i = at; i < at + d; ++i) squares += x[i] * x[i], dot += x[i] * dout[i];
      const double r = 1 / std::sqrt(squares / static_cast<double>(d) + epsilon);
      inv_rms.push_back(r);
      for (std::size_t i = at; i < at + d; ++i) {
        out[i] = x[i] * r;
        din[i] = r * (dout[i] - x[i] * r * r * dot / static_cast<double>(d));
      }
    }
  }
};

void check_head_norm(Rig& rig, const HeadLayout& l, DType dtype) {
  Stream& s = rig.stream();
  constexpr float epsilon = 1e-5f;
  const std::string what = l.name() + " " + std::string(name_of(dtype));
  const SpreadHeads x(s, dtype, l, 1), dout(s, dtype, l, 2), out(s, dtype, l, 3), din(s, dtype, l, 4),
      sum(s, dtype, l, 5);
  const TestTensor inv_rms(s, DType::f32, {l.n, l.heads});
  const Values before = sum.values(s), dy = dout.values(s);
  rig.ops().head_norm(s, out, x, inv_rms, epsilon);
  rig.ops().head_norm_grad(s, {.din = din, .dout = dout, .in = x, .inv_rms = inv_rms});
  rig.ops().head_norm_grad(s, {.din = sum, .dout = dout, .in = x, .inv_rms = inv_rms, .din_mode = Accumulate::add});
  const HeadNormReference expected(x.values(s), dy, l, static_cast<double>(epsilon));
  // Sums of head_dim terms, and a few operations more.
  const double slack = kU * (8 + 2 * std::sqrt(static_cast<double>(l.head_dim)));
  Values out_off, din_off, added, added_off;
  for (std::size_t i = 0; i < expected.out.size(); ++i) {
    const double r = expected.inv_rms[i / static_cast<std::size_t>(l.head_dim)];
    out_off.push_back((slack + unit_roundoff(dtype)) * std::abs(expected.out[i]));
    const double terms = r * (std::abs(dy[i]) + std::abs(expected.out[i]) * std::sqrt(static_cast<double>(l.head_dim)));
    din_off.push_back(slack * terms + unit_roundoff(dtype) * std::abs(expected.din[i]));
    added.push_back(before[i] + expected.din[i]);
    added_off.push_back(slack * terms + (unit_roundoff(dtype) + 2 * kU) * (std::abs(added[i]) + std::abs(before[i])));
  }
  out.expect(s, expected.out, out_off, what + ", out");
  din.expect(s, expected.din, din_off, what + ", din");
  sum.expect(s, added, added_off, what + ", added");
  // In place.
  rig.ops().head_norm_grad(s, {.din = dout, .dout = dout, .in = x, .inv_rms = inv_rms});
  EXPECT_EQ(dout.values(s), din.values(s)) << what;
}

TEST(HeadNorm, AgreesWithDoublePrecision) {
  Rig rig;
  for_each_instruction_set([&] {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const HeadLayout& layout : kLayouts) check_head_norm(rig, layout, dtype);
  });
}

TEST(HeadNorm, RefusesWrongArguments) {
  Rig rig;
  Stream& s = rig.stream();
  const HeadLayout layout{4, 2, 8};
  const SpreadHeads x(s, DType::f32, layout, 1), out(s, DType::f32, layout, 2), narrow(s, DType::f32, {4, 2, 6}, 3);
  const TestTensor inv_rms(s, DType::f32, {4, 2}), few(s, DType::f32, {4, 1});
  EXPECT_THROW(rig.ops().head_norm(s, x, x, inv_rms, 0), Bug);
  EXPECT_THROW(rig.ops().head_norm(s, narrow, x, inv_rms, 0), Bug);
  EXPECT_THROW(rig.ops().head_norm(s, out, x, few, 0), Bug);
  EXPECT_THROW(
      rig.ops().head_norm_grad(s, {.din = out, .dout = out, .in = x, .inv_rms = inv_rms, .din_mode = Accumulate::add}),
      Bug);
}

}  // namespace
}  // namespace so::test::head_norm_test
