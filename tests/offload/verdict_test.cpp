#include "offload/verdict.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

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

// A rank of several, whose sums arrive with the others' added.
class OtherRanks final : public Communicator {
 public:
  OtherRanks(double squares, double non_finite) : squares_(squares), non_finite_(non_finite) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  void all_reduce_sum(std::span<double> values) override {
    ASSERT_EQ(values.size(), 2u);
    values[0] += squares_;
    values[1] += non_finite_;
  }
  void barrier() override {}

 private:
  double squares_, non_finite_;
};

TEST(Verdict, IsOverAllRanks) {
  const std::vector<GradStats> stats = {{9, 0}};
  OtherRanks sound(16, 0), broken(16, 1);
  EXPECT_EQ(make_verdict(stats, sound, 0).norm, 5.0);
  const Verdict v = make_verdict(stats, broken, 0);
  EXPECT_FALSE(v.finite) << "another rank's gradient is not finite";
  EXPECT_EQ(v.non_finite_parameter, -1) << "which is none of this rank's";
}

}  // namespace
}  // namespace so
