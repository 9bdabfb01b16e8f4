#include "offload/verdict.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

#include "support/thread_ranks.h"

namespace so {
namespace {

Verdict verdict_of(const std::vector<GradStats>& stats, double max_norm) {
  const auto ranks = make_single_communicator();
  return make_verdict(stats, *ranks, max_norm);
}

TEST(Verdict, NormIsOverAllParameters) {
  const Verdict v = verdict_of({{9, 0}, {16, 0}, {0, 0}, {144, 0}}, 0);
  EXPECT_TRUE(v.finite);
  EXPECT_EQ(v.norm, 13.0);
  EXPECT_EQ(v.clip, 1.0f);
  EXPECT_EQ(v.non_finite_parameter, -1);
}

TEST(Verdict, ClipsOnlyAboveTheLimit) {
  const std::vector<GradStats> stats = {{9, 0}, {16, 0}};  // norm 5
  EXPECT_EQ(verdict_of(stats, 0).clip, 1.0f) << "0 means no clipping";
  EXPECT_EQ(verdict_of(stats, -1).clip, 1.0f);
  EXPECT_EQ(verdict_of(stats, 6).clip, 1.0f);
  // As torch.nn.utils.clip_grad_norm_: max / (norm + 1e-6), rounded once.
  EXPECT_EQ(verdict_of(stats, 2).clip, static_cast<float>(2 / (5 + 1e-6)));
  EXPECT_EQ(verdict_of(stats, 2).norm, 5.0) << "the norm is that before clipping";
  EXPECT_EQ(verdict_of({{0, 0}}, 1).clip, 1.0f) << "a zero gradient is not clipped";
}

// Backward goes from the last parameter to the first.
TEST(Verdict, NonFiniteNamesTheFirstParameterOfBackward) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const Verdict v = verdict_of({{1, 0}, {inf, 1}, {nan, 3}, {2, 0}}, 1);
  EXPECT_FALSE(v.finite);
  EXPECT_EQ(v.non_finite_parameter, 2);
  EXPECT_TRUE(std::isnan(v.norm));
  EXPECT_EQ(v.clip, 1.0f);
  EXPECT_EQ(verdict_of({{inf, 1}}, 0).non_finite_parameter, 0);
  // The count decides, not the sum, which is meaningless beside it.
  EXPECT_FALSE(verdict_of({{1, 0}, {5, 1}}, 1).finite);
}

// Squares of large but finite gradients exceed fp32's range; the step is sound and must stand.
TEST(Verdict, LargeGradientsAreNotTakenForInfinity) {
  const double square = static_cast<double>(FLT_MAX) * FLT_MAX;
  const Verdict v = verdict_of({{square, 0}, {square, 0}, {2 * square, 0}}, 1);
  EXPECT_TRUE(v.finite);
  EXPECT_DOUBLE_EQ(v.norm, 2.0 * FLT_MAX);
  EXPECT_EQ(v.clip, static_cast<float>(1 / (v.norm + 1e-6)));
  EXPECT_GT(v.clip, 0.0f);
}

TEST(Verdict, IsOverAllRanks) {
  test::run_ranks(2, [](Communicator& ranks) {
    const bool first = ranks.rank() == 0;
    const Verdict sound = make_verdict(std::vector<GradStats>{{first ? 9.0 : 16.0, 0}}, ranks, 0);
    EXPECT_EQ(sound.norm, 5.0);
    const Verdict broken = make_verdict(std::vector<GradStats>{{9, first ? 0u : 1u}}, ranks, 0);
    EXPECT_FALSE(broken.finite) << "a gradient of rank 1 is not finite";
    EXPECT_EQ(broken.non_finite_parameter, 0) << "every rank knows which";
  });
}

}  // namespace
}  // namespace so
