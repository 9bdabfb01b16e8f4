#include "plan/machine/rank_share.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "plan/machine/rank_rates.h"
#include "support/device_rig.h"
#include "support/on_gpu.h"
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

// Two ranks have a GPU together, whose memory a rank sees with what is free now.
TEST(RankShare, OfAGpuThatRanksShare) {
  test::run_ranks(2, [](Communicator& ranks) {
    PlanningMachine machine;
    machine.host = {4000, "free memory"};
    machine.device_memory = static_cast<std::size_t>(900 - 100 * ranks.rank());
    machine.whole_device_memory = 1000;
    machine.device_cap = 900;
    share_machine(ranks, machine, 2);
    EXPECT_EQ(machine.device_memory, 400u);
    EXPECT_EQ(machine.whole_device_memory, 500u);
    EXPECT_EQ(machine.device_cap, 450u);
  });
}

TEST(RankRates, OfCollectivesAreTheSameForAll) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other's streams");
  std::array<CollectiveRates, 2> rates;
  test::run_ranks(2, [&](Communicator& ranks) {
    test::DeviceRig rig(1);
    rates[static_cast<std::size_t>(ranks.rank())] = measure_collectives(rig.device(), ranks, CollectiveRoute::host);
    ranks.barrier();
  });
  EXPECT_GT(rates[0].bytes, 0);
  EXPECT_GT(rates[0].seconds, 0);
  EXPECT_EQ(rates[0].bytes, rates[1].bytes);
  EXPECT_EQ(rates[0].seconds, rates[1].seconds);
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

TEST(RankShare, OfFreeMemoryIsTheSameForAll) {
  const std::size_t all = share_of_host(*make_single_communicator()).available;
  EXPECT_GT(all, 0u);
  std::array<std::size_t, 4> shares{};
  test::run_ranks(4, [&](Communicator& ranks) {
    const HostMemory host = share_of_host(ranks);
    shares[static_cast<std::size_t>(ranks.rank())] = host.available;
    EXPECT_NE(host.limited_by.find(", shared by 4 ranks"), std::string::npos) << host.limited_by;
  });
  EXPECT_GT(shares[0], 0u);
  for (const std::size_t share : shares) EXPECT_EQ(share, shares[0]);
}

}  // namespace
}  // namespace so
