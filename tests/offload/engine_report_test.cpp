#include "offload/engine_report.h"

#include <gtest/gtest.h>

#include <cstring>
#include <type_traits>
#include <vector>

namespace so::test {
namespace {

// A counter that since() forgot would keep its value.
TEST(EngineReport, ADifferenceSubtractsEveryCounter) {
  static_assert(std::is_trivially_copyable_v<EngineCounters>);
  EngineCounters counters;
  std::memset(static_cast<void*>(&counters), 1, sizeof counters);  // as numbers: neither 0 nor NaN
  const EngineCounters none = since(counters, counters);
  std::vector<unsigned char> bytes(sizeof none);
  std::memcpy(bytes.data(), &none, sizeof none);
  EXPECT_EQ(bytes, std::vector<unsigned char>(sizeof none, 0));
}

TEST(EngineReport, ADifferenceIsOfTheTwoReadings) {
  EngineCounters before, now;
  before.steps = 3, now.steps = 10;
  before.host.seconds[0] = 0.5, now.host.seconds[0] = 2;
  before.device_waits[1] = 1, now.device_waits[1] = 1.25;
  const EngineCounters difference = since(now, before);
  EXPECT_EQ(difference.steps, 7);
  EXPECT_EQ(overlap_of(difference).host_adamw(), 1.5);
  EXPECT_EQ(total(difference.device_waits), 0.25);
}

}  // namespace
}  // namespace so::test
