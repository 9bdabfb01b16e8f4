#include "train/step_time_limit.h"

#include <gtest/gtest.h>

#include "ranks/thread_ranks.h"

namespace so {
namespace {

constexpr double limit_at_first = 1800;

class StepTimeLimits : public testing::Test {
 protected:
  // A step of all tokens there can be.
  void step(double seconds, bool saving = false, std::int64_t tokens = 1000) {
    limit_.begin_step(saving);
    during_ = ranks_->time_limit();
    limit_.end_step(seconds, tokens);
  }
  const std::unique_ptr<Communicator> ranks_ = std::move(make_thread_ranks(1, limit_at_first)[0]);
  StepTimeLimit limit_{*ranks_, 1000};
  double during_ = 0;  // the limit of the last step
};

TEST_F(StepTimeLimits, FollowsTheLongestMeasuredStep) {
  step(500);  // the first touches memory
  for (int i = 0; i < StepTimeLimit::measured_steps; ++i) {
    step(4);
    EXPECT_EQ(during_, limit_at_first);
  }
  step(7);
  EXPECT_EQ(during_, 4 * StepTimeLimit::multiple);
  step(1);
  EXPECT_EQ(during_, 7 * StepTimeLimit::multiple);
}

TEST_F(StepTimeLimits, IsNeverShorterThanAStallOfTheMachine) {
  for (int i = 0; i < 10; ++i) step(0.01);
  EXPECT_EQ(during_, StepTimeLimit::least_seconds);
}

TEST_F(StepTimeLimits, LeavesOtherWorkAndTheStepBehindItTheirTime) {
  for (int i = 0; i < 10; ++i) step(1);
  limit_.begin_other_work();
  EXPECT_EQ(ranks_->time_limit(), limit_at_first);
  step(100);  // in which the others wait for one that still does it
  EXPECT_EQ(during_, limit_at_first);
  step(1, true);
  EXPECT_EQ(during_, limit_at_first);
  step(1);
  EXPECT_EQ(during_, StepTimeLimit::least_seconds) << "neither was measured";
}

// A rank that hangs beside a checkpoint is found too, once it is known how long such steps take.
TEST_F(StepTimeLimits, FollowsTheLongestStepBesideACheckpoint) {
  for (int i = 0; i < 10; ++i) step(1);
  const auto save = [&](double seconds) {
    limit_.begin_save();
    step(1, true);
    EXPECT_EQ(during_, limit_at_first) << "the others may still begin the save";
    step(seconds, true);
  };
  save(5);
  EXPECT_EQ(during_, limit_at_first);
  step(2, true);
  EXPECT_EQ(during_, limit_at_first) << "the first has not been written yet";
  step(1);
  EXPECT_EQ(during_, StepTimeLimit::least_seconds) << "a step beside it says nothing of others";
  save(40);
  EXPECT_EQ(during_, StepTimeLimit::least_saving_seconds);
  step(1, true);
  EXPECT_EQ(during_, 40 * StepTimeLimit::multiple);
  step(1);
  step(1);
  EXPECT_EQ(during_, StepTimeLimit::least_seconds);
}

TEST_F(StepTimeLimits, KnowsOfACheckpointThatAnotherFollowsAtOnce) {
  for (int i = 0; i < 10; ++i) step(1);
  for (const double limit : {limit_at_first, StepTimeLimit::least_saving_seconds}) {
    limit_.begin_save();
    step(1, true);
    step(1, true);
    EXPECT_EQ(during_, limit);
  }
}

TEST_F(StepTimeLimits, KnowsThatAStepCanBeLarger) {
  step(1);
  step(8, false, 10);  // a hundredth of the largest
  step(9, false, 100);
  step(1);
  EXPECT_EQ(during_, 90 * StepTimeLimit::multiple) << "the lower of two estimates";
}

TEST_F(StepTimeLimits, IsLongerThanAtFirstWhereStepsAre) {
  for (int i = 0; i < 4; ++i) step(400);
  EXPECT_EQ(during_, 4000);
  limit_.begin_other_work();
  EXPECT_EQ(ranks_->time_limit(), 4000);
}

TEST_F(StepTimeLimits, EndsWithTheRun) {
  {
    StepTimeLimit other(*ranks_, 1);
    for (int i = 0; i < 10; ++i) {
      other.begin_step(false);
      other.end_step(0.1, 1);
    }
    EXPECT_EQ(ranks_->time_limit(), StepTimeLimit::least_seconds);
  }
  EXPECT_EQ(ranks_->time_limit(), limit_at_first);
}

}  // namespace
}  // namespace so
