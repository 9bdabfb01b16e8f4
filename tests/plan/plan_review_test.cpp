// A run compares its plan with what it measured.
#include "plan/plan_review.h"

#include <gtest/gtest.h>

#include <array>

#include "base/error.h"
#include "io/presets.h"
#include "model/config.h"
#include "model/parameters.h"
#include "offload/schedule/owner_split.h"

namespace so {
namespace {

class Review : public testing::Test {
 protected:
  Review() : layout_(make_parameters(read_decoder_spec(resolve_config("qwen3-0.6b").text, "a test"))) {
    plan_.engine.device_units = 5;
    plan_.engine.streamed_units = 3;
    plan_.rates = {.gemm_flops = 600e12,
                   .device_memory = 4e12,
                   .link_to_host = 55e9,
                   .link_to_device = 55e9,
                   .host_adamw = 160e9,
                   .host_adamw_wide = 150e9,
                   .host_memory = 160e9};
    plan_.estimate = StepEstimate{.gpu = 2.1, .device_update = 0.1, .exposed = 0.2};  // 2 s of passes
    plan_.estimate->times.update_seconds = 0.2e-9;
  }
  PlanReview review() {
    return {plan_, layout_, [this](const MachineRates& rates, const PlanReview::Wanted& wanted) {
              const auto& ratio = wanted.ratio;
              asked_.push_back({rates, wanted});
              if (nothing_fits_) fail("not enough memory");
              TrainingPlan plan;
              plan.engine.device_units = ratio ? device_units_for_ratio(layout_, *ratio) : other_units_;
              plan.engine.streamed_units = ratio ? wanted.streamed_layers.value() : other_streamed_;
              plan.estimate = StepEstimate{.gpu = ratio ? 2.5 : other_seconds_};
              return plan;
            }};
  }
  static MeasuredSteps as_planned() {
    MeasuredSteps m;
    m.count = 8;
    m.step_seconds = 2.3;
    m.pass_seconds = 2.0;
    m.update_seconds = 0.2e-9;
    m.speculated = 3;
    m.left = 4.5;
    return m;
  }
  static bool says(const std::vector<std::string>& lines, const std::string& what) {
    for (const std::string& line : lines)
      if (line.find(what) != std::string::npos) return true;
    return false;
  }

  ParameterLayout layout_;
  TrainingPlan plan_;
  int other_units_ = 9, other_streamed_ = 3;
  double other_seconds_ = 2.4;
  bool nothing_fits_ = false;
  struct Asked {
    MachineRates rates;
    PlanReview::Wanted wanted;
  };
  std::vector<Asked> asked_;
};

TEST_F(Review, IsSilentWhileRatesAreAsPlanned) {
  PlanReview r = review();
  MeasuredSteps m = as_planned();
  EXPECT_TRUE(r.look(m).empty());
  m.pass_seconds = 2.08;
  m.update_seconds = 0.192e-9;
  m.step_seconds = 9;  // an evaluation came between, say: rates count
  EXPECT_TRUE(r.look(m).empty());
  m.pass_seconds = m.update_seconds = 0;  // nothing measured yet
  EXPECT_TRUE(r.look(m).empty());
  EXPECT_TRUE(asked_.empty()) << "planning anew takes time";
}

TEST_F(Review, SaysWhatDiffersOnceAndAgainWhenItChanges) {
  PlanReview r = review();
  MeasuredSteps m = as_planned();
  m.update_seconds = 0.25e-9;
  m.step_seconds = 2.53;
  const auto lines = r.look(m);
  EXPECT_TRUE(says(lines, "AdamW on the host 4.00 G parameters/s, planned 5.00 (-20.0%)")) << lines[0];
  EXPECT_TRUE(says(lines, "a step 2.530 s, planned 2.300 (+10.0%); forward and backward 2.000 s")) << lines[0];
  EXPECT_TRUE(
      says(lines, "3.0 a step run before the gradient norm is known, 0.0 more with weights only, 4.5 after it"));
  EXPECT_TRUE(r.look(m).empty());
  m.update_seconds = 0.26e-9;
  EXPECT_TRUE(r.look(m).empty());
  m.pass_seconds = 2.2;
  EXPECT_TRUE(says(r.look(m), "backward 2.200 s, planned 2.000 (+10.0%)"));
  m = as_planned();
  EXPECT_FALSE(r.look(m).empty()) << "back to the plan is a change too";
}

TEST_F(Review, PlansAnewWithWhatWasMeasured) {
  PlanReview r = review();
  MeasuredSteps m = as_planned();
  m.pass_seconds = 2.5;
  m.update_seconds = 0.4e-9;
  const auto lines = r.look(m);
  ASSERT_EQ(asked_.size(), 2u);
  EXPECT_DOUBLE_EQ(asked_[0].rates.gemm_flops, 480e12);
  EXPECT_DOUBLE_EQ(asked_[0].rates.device_memory, 3.2e12);
  EXPECT_DOUBLE_EQ(asked_[0].rates.host_adamw, 80e9);
  EXPECT_DOUBLE_EQ(asked_[0].rates.host_memory, 80e9);
  EXPECT_DOUBLE_EQ(asked_[0].rates.host_adamw_wide, 75e9);
  EXPECT_DOUBLE_EQ(asked_[0].rates.link_to_host, 55e9);
  EXPECT_EQ(device_units_for_ratio(layout_, asked_[0].wanted.ratio.value()), 5) << "as it is";
  EXPECT_EQ(asked_[0].wanted.streamed_layers, 3);
  EXPECT_EQ(asked_[1].wanted.ratio, std::nullopt);
  EXPECT_EQ(asked_[1].wanted.streamed_layers, std::nullopt);
  const std::string& advice = lines.back();
  EXPECT_NE(advice.find("would take 2.400 s a step instead of 2.500 (-4.0%)"), std::string::npos) << advice;
  // The ratio named gives the split that is meant.
  const std::string option = "--offload_ratio ";
  const std::size_t at = advice.find(option);
  ASSERT_NE(at, std::string::npos) << advice;
  EXPECT_EQ(device_units_for_ratio(layout_, std::stod(advice.substr(at + option.size()))), 9);
}

// The command line refuses what then has nothing to do.
TEST_F(Review, NamesTheRatioAloneWhereTheDeviceHasAll) {
  MeasuredSteps m = as_planned();
  m.pass_seconds = 2.5;
  other_units_ = layout_.units();
  other_streamed_ = 0;
  other_seconds_ = 2;
  const auto lines = review().look(m);
  EXPECT_TRUE(says(lines, " --offload_ratio 0.00 would take")) << lines.back();
  EXPECT_FALSE(says(lines, "--streamed_layers"));
}

TEST_F(Review, NamesNoSplitThatGainsLittle) {
  MeasuredSteps m = as_planned();
  m.pass_seconds = 2.5;
  other_seconds_ = 2.46;
  EXPECT_TRUE(says(review().look(m), "expected to take 2.500 s, and no other split would be faster"));
  other_seconds_ = 2;
  other_units_ = 5;
  EXPECT_FALSE(says(review().look(m), "--offload_ratio"));
  other_streamed_ = 7;
  EXPECT_TRUE(says(review().look(m), "stream the weights of 7 layers, not 3: --streamed_layers 7 would take 2.000 s"));
  nothing_fits_ = true;
  EXPECT_TRUE(says(review().look(m), "no other plan was found"));
}

}  // namespace
}  // namespace so
