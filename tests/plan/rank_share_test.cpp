#include "plan/machine/rank_share.h"

#include <gtest/gtest.h>

#include "support/thread_ranks.h"

namespace so {
namespace {

// Thread ranks are all of one host.
TEST(RankShare, IsTheLeastOfAllRanks) {
  test::run_ranks(3, [](Communicator& ranks) {
    PlanningMachine machine;
    machine.host = {static_cast<std::size_t>(3000 + 300 * ranks.rank()), "free memory"};
    machine.host_cap = 900;
    machine.held = static_cast<std::size_t>(10 * ranks.rank());
    share_machine(ranks, machine);
    EXPECT_EQ(machine.host.available, 1000u);
    EXPECT_EQ(machine.host_cap, 300u);
    EXPECT_EQ(machine.held, 20u) << "of the rank that holds the most";
  });
}

TEST(RankShare, OfOneRankIsAll) {
  PlanningMachine machine;
  machine.host = {3000, "free memory"};
  machine.host_cap = 900;
  share_machine(*make_single_communicator(), machine);
  EXPECT_EQ(machine.host.available, 3000u);
  EXPECT_EQ(machine.host_cap, 900u);
  EXPECT_FALSE(machine.held);
}

TEST(RankShare, OfCpusIsAtLeastOne) {
  EXPECT_EQ(share_of_cpus(*make_single_communicator(), 7), 7);
  test::run_ranks(4, [](Communicator& ranks) {
    EXPECT_EQ(share_of_cpus(ranks, 9), 2);
    EXPECT_EQ(share_of_cpus(ranks, 3), 1);
  });
}

}  // namespace
}  // namespace so
