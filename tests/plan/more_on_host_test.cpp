// State that would fit the device goes to the host where its update hides, and only where it stays hidden.
#include "plan/placement/more_on_host.h"

#include <gtest/gtest.h>

#include "plan/layered_machine.h"
#include "support/errors.h"

namespace so::test {
namespace {

TEST(MoreOnHost, TakesThePartThatHides) {
  LayeredMachine m(20, 200'000'000, 16'384);
  const ChosenPlan fits = choose_placement(m.in), more = with_more_on_host(m.in, fits);
  ASSERT_EQ(fits.device_units, m.units());
  EXPECT_LT(more.device_units, m.units());
  EXPECT_GT(more.device_units, 0) << "all would not be hidden on a slower host";
  EXPECT_LT(more.estimate.seconds(), 0.996 * fits.estimate.seconds());
  expect_in(more.why_split, {"on the host", "also if the host is half as fast"});
}

// With 12,000 tokens clipped steps limit it, and with 32,768 the slower host does.
TEST(MoreOnHost, NoStepIsLongerOnASlowerHostOrClipped) {
  for (const double tokens : {12'000.0, 16'384.0, 32'768.0}) {
    SCOPED_TRACE(tokens);
    LayeredMachine m(20, 200'000'000, tokens);
    const ChosenPlan fits = choose_placement(m.in), more = with_more_on_host(m.in, fits);
    EXPECT_LT(more.device_units, fits.device_units);
    const auto seconds = [&](SimulatedRun run, double host, Verdicts verdicts) {
      run.host_adamw *= host;
      run.host_memory *= host;
      run.verdicts = verdicts;
      return m.in.known_steps->estimate(run).seconds();
    };
    EXPECT_LE(seconds(more.run, 0.5, Verdicts::stand), (1 + 1e-6) * seconds(fits.run, 0.5, Verdicts::stand));
    EXPECT_LE(seconds(more.run, 1, Verdicts::clip), (1 + 1e-6) * seconds(fits.run, 1, Verdicts::clip));
  }
}

TEST(MoreOnHost, NothingWhereItWouldShow) {
  const auto stays = [](LayeredMachine& m) {
    const ChosenPlan fits = choose_placement(m.in), more = with_more_on_host(m.in, fits);
    return more.device_units == fits.device_units && more.why_split == fits.why_split;
  };
  LayeredMachine slow(20, 200'000'000, 16'384);
  slow.in.rates.host_memory = slow.in.rates.host_adamw = slow.in.rates.host_adamw_wide = 2e9;
  EXPECT_TRUE(stays(slow)) << "a host that hides nothing";
  LayeredMachine short_step(20, 200'000'000, 64);
  EXPECT_TRUE(stays(short_step)) << "a step in which nothing hides";
  LayeredMachine long_step(20, 200'000'000, 1e6);
  EXPECT_TRUE(stays(long_step)) << "a step of which the update is next to nothing";
  LayeredMachine told(20, 200'000'000, 16'384);
  told.in.forced_device_units = told.units();
  EXPECT_TRUE(stays(told)) << "as asked";
  LayeredMachine synchronous(20, 200'000'000, 16'384);
  synchronous.in.schedule = Schedule::synchronous;
  EXPECT_TRUE(stays(synchronous)) << "nothing is hidden";
  LayeredMachine full(20, 200'000'000, 16'384);
  full.budgets(1e15, 0);
  EXPECT_TRUE(stays(full)) << "a host without memory";
}

}  // namespace
}  // namespace so::test
