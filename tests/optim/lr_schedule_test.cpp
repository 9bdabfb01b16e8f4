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
  EXPECT_EQ(name.rfind("constant", 0), 0u) << name;
  return LrScheduleKind::constant;
}

TEST(LrSchedule, AgreesWithTransformers) {
  std::ifstream file(test::fixtures() + "/optim/lr_schedule.json");
  const auto fixture = nlohmann::json::parse(file);
  ASSERT_EQ(fixture["cases"].size(), 15u);
  for (const auto& c : fixture["cases"]) {
    SCOPED_TRACE(c["kind"].get<std::string>() + " " + c["ratio"].dump() + " " + c["total"].dump());
    const std::int64_t total = c["total"];
    const std::int64_t warmup = warmup_steps_of(c["ratio"], total);
    EXPECT_EQ(warmup, c["warmup"]);
    const double peak = c["peak"];
    const LrSchedule schedule(kind_of(c["kind"]), peak, warmup, total);
    for (std::size_t step = 0; step < c["rates"].size(); ++step) {
      // The same operations in the same order, but for the cosine of another libm: a few of double's roundings.
      EXPECT_NEAR(schedule.rate(static_cast<std::int64_t>(step)), c["rates"][step].get<double>(), 1e-15 * peak) << step;
    }
  }
}

TEST(LrSchedule, StaysAtZeroPastTheEnd) {
  for (const LrScheduleKind kind : {LrScheduleKind::linear, LrScheduleKind::cosine})
    for (const std::int64_t step : {10, 11, 15, 1000}) EXPECT_EQ(LrSchedule(kind, 1.0, 2, 10).rate(step), 0.0);
  EXPECT_EQ(LrSchedule(LrScheduleKind::constant, 0.5, 2, 10).rate(1000), 0.5);
}

TEST(LrSchedule, TakesAWarmupLongerThanTheRun) {
  const LrSchedule schedule(LrScheduleKind::cosine, 1.0, 8, 4);
  EXPECT_EQ(schedule.rate(4), 0.5);
  EXPECT_EQ(schedule.rate(8), 0.0);
}

TEST(LrSchedule, RefusesWhatCannotBe) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(warmup_steps_of(-0.1, 10), Error);
  EXPECT_THROW(warmup_steps_of(1.1, 10), Error);
  EXPECT_THROW(warmup_steps_of(nan, 10), Error);
  EXPECT_THROW(warmup_steps_of(0.1, -1), Error);
  EXPECT_THROW(LrSchedule(LrScheduleKind::linear, nan, 0, 10), Error);
  EXPECT_THROW(LrSchedule(LrScheduleKind::linear, -1.0, 0, 10), Error);
  EXPECT_THROW(LrSchedule(LrScheduleKind::linear, 1.0, -1, 10), Error);
  EXPECT_THROW(LrSchedule(LrScheduleKind::linear, 1.0, 0, -10), Error);
  EXPECT_THROW(LrSchedule(LrScheduleKind::linear, 1.0, 0, 10).rate(-1), Bug);
}

}  // namespace
}  // namespace so
