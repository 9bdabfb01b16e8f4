// Schedules against transformers'.
#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "support/paths.h"

namespace so {
namespace {

LrScheduleKind kind_of(const std::string& name) {
  if (name == "linear") return LrScheduleKind::linear;
  if (name == "cosine") return LrScheduleKind::cosine;
  if (name == "wsd") return LrScheduleKind::wsd;
  EXPECT_EQ(name.rfind("constant", 0), 0u) << name;
  return LrScheduleKind::constant;
}

TEST(LrSchedule, AgreesWithTransformers) {
  std::ifstream file(test::fixtures() + "/optim/lr_schedule.json");
  const auto fixture = nlohmann::json::parse(file);
  ASSERT_EQ(fixture["cases"].size(), 27u);
  for (const auto& c : fixture["cases"]) {
    SCOPED_TRACE(c.dump());
    LrCourse course{.kind = kind_of(c["kind"]),
                    .peak = c["peak"],
                    .least = c.value("least", 0.0),
                    .warmup_steps = c["warmup"],
                    .decay_steps = c.value("decay", 0),
                    .total_steps = c["total"]};
    const double peak = course.peak;
    if (c.contains("ratio")) {
      EXPECT_EQ(share_of_steps(c["ratio"], course.total_steps), course.warmup_steps);
    }
    const LrSchedule schedule(course);
    for (std::size_t step = 0; step < c["rates"].size(); ++step) {
      // The same operations in the same order, but for the cosine of another libm: a few of double's roundings.
      EXPECT_NEAR(schedule.rate(static_cast<std::int64_t>(step)), c["rates"][step].get<double>(), 1e-15 * peak) << step;
    }
  }
}

TEST(LrSchedule, StaysPastTheEnd) {
  for (const LrScheduleKind kind : {LrScheduleKind::linear, LrScheduleKind::cosine, LrScheduleKind::wsd})
    for (const double least : {0.0, 0.25})
      for (const std::int64_t step : {10, 11, 15, 1000})
        EXPECT_EQ(LrSchedule({kind, 1.0, least, 2, 3, 10}).rate(step), least);
  EXPECT_EQ(LrSchedule({LrScheduleKind::constant, 0.5, 0.0, 2, 0, 10}).rate(1000), 0.5);
}

TEST(LrSchedule, WsdFallsAtTheEndAlone) {
  const LrSchedule schedule({LrScheduleKind::wsd, 1.0, 0.5, 2, 4, 10});
  for (const std::int64_t step : {2, 3, 4, 5, 6}) EXPECT_EQ(schedule.rate(step), 1.0);
  EXPECT_LT(schedule.rate(7), 1.0);
  EXPECT_EQ(schedule.rate(8), 0.75);
  EXPECT_EQ(LrSchedule({LrScheduleKind::wsd, 1.0, 0.0, 2, 0, 10}).rate(9), 1.0);
}

TEST(LrSchedule, TakesAWarmupLongerThanTheRun) {
  for (const LrScheduleKind kind : {LrScheduleKind::cosine, LrScheduleKind::wsd}) {
    const LrSchedule schedule({kind, 1.0, 0.0, 8, 2, 4});
    EXPECT_EQ(schedule.rate(4), 0.5);
    EXPECT_EQ(schedule.rate(8), 0.0);
  }
}

TEST(LrSchedule, RefusesWhatCannotBe) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(share_of_steps(-0.1, 10), Error);
  EXPECT_THROW(share_of_steps(1.1, 10), Error);
  EXPECT_THROW(share_of_steps(nan, 10), Error);
  EXPECT_THROW(share_of_steps(0.1, -1), Error);
  const LrCourse good{LrScheduleKind::linear, 1.0, 0.5, 0, 0, 10};
  const auto with = [&](auto member, auto value) {
    LrCourse course = good;
    course.*member = value;
    return course;
  };
  LrSchedule{good};
  EXPECT_THROW(LrSchedule(with(&LrCourse::peak, nan)), Error);
  EXPECT_THROW(LrSchedule(with(&LrCourse::peak, -1.0)), Error);
  EXPECT_THROW(LrSchedule(with(&LrCourse::least, nan)), Error);
  EXPECT_THROW(LrSchedule(with(&LrCourse::least, -0.1)), Error);
  EXPECT_THROW(LrSchedule(with(&LrCourse::least, 1.1)), Error);
  EXPECT_THROW(LrSchedule(with(&LrCourse::warmup_steps, std::int64_t{-1})), Error);
  EXPECT_THROW(LrSchedule(with(&LrCourse::decay_steps, std::int64_t{-1})), Error);
  EXPECT_THROW(LrSchedule(with(&LrCourse::total_steps, std::int64_t{-10})), Error);
  EXPECT_THROW(LrSchedule(good).rate(-1), Bug);
}

}  // namespace
}  // namespace so
