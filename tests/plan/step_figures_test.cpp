#include "plan/step_figures.h"

#include <gtest/gtest.h>

#include <vector>

namespace so {
namespace {

// A step of `tokens` on a device that does a token in a millisecond and waits 10 ms a step.
MeasuredStep figure_step(double tokens, double more_seconds = 0) {
  return {.overlap = {.seconds = tokens / 1000 + 0.01 + more_seconds, .device_idle = {0.01}},
          .tokens = tokens,
          .model_flops = 1e9 * tokens};
}

TEST(StepFigures, AreOfTheSameSteps) {
  // The device's work is the step without its waits, so a figure of other steps than the others' would not add up.
  std::vector<MeasuredStep> steps(30, figure_step(30));
  steps[0] = figure_step(30, 2.5);  // loaded kernels
  steps[7] = figure_step(30, 0.1);  // one more
  const StepFigures figures = figures_of(steps);
  EXPECT_EQ(figures.steps, 28);
  EXPECT_EQ(figures.left_out, 2);
  EXPECT_NEAR(figures.seconds(), 0.04, 1e-12);
  EXPECT_NEAR(figures.of_a_step(figures.sum.overlap.device_work()), 0.03, 1e-12);
  EXPECT_NEAR(figures.tokens_per_s(), 30 / 0.04, 1e-9);
}

TEST(StepFigures, KeepStepsThatHaveMoreToDo) {
  // Documents of many lengths: the mean is that of all steps, which is what the plan's mean number of tokens gives.
  std::vector<MeasuredStep> steps;
  double tokens = 0;
  for (int i = 0; i < 40; ++i) {
    steps.push_back(figure_step(i % 4 == 3 ? 900 : 10 + i));
    tokens += steps.back().tokens;
  }
  const StepFigures figures = figures_of(steps);
  EXPECT_EQ(figures.left_out, 0);
  EXPECT_NEAR(figures.seconds(), tokens / 40 / 1000 + 0.01, 1e-12);
}

TEST(StepFigures, KeepShortStepsThatTakeLongForTheirWork) {
  // Where AdamW on the host sets the pace, a step takes as long however few its tokens are.
  std::vector<MeasuredStep> steps(20, figure_step(100));
  for (std::size_t i = 0; i < steps.size(); i += 3) steps[i].model_flops /= 10;
  EXPECT_EQ(figures_of(steps).left_out, 0);
}

TEST(StepFigures, OfTwoStepsTakeTheShorterOneAsUsual) {
  const std::vector<MeasuredStep> steps{figure_step(30, 1), figure_step(30)};
  EXPECT_NEAR(figures_of(steps).seconds(), 0.04, 1e-12);
  EXPECT_EQ(figures_of({}).steps, 0);
  EXPECT_EQ(figures_of({}).seconds(), 0);
}

TEST(StepHistory, KeepsTheLastSteps) {
  StepHistory history;
  for (std::size_t i = 0; i < StepHistory::most + 5; ++i) history.add(figure_step(i < 5 ? 25 : 30));
  EXPECT_EQ(history.figures().steps, static_cast<std::int64_t>(StepHistory::most));
  EXPECT_NEAR(history.figures().seconds(), 0.04, 1e-9);
}

}  // namespace
}  // namespace so
