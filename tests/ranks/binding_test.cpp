#include "ranks/binding.h"

#include <gtest/gtest.h>
#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "support/thread_ranks.h"

namespace so {
namespace {

Cpus first_of(int count) {
  Cpus cpus(static_cast<std::size_t>(count));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

// A machine that is described in hwloc's words; of `allowed`, by default all, a process may use.
std::vector<NodeCores> machine(const char* description, const Cpus& allowed = first_of(1024)) {
  hwloc_topology_t topology = nullptr;
  hwloc_topology_init(&topology);
  EXPECT_EQ(hwloc_topology_set_synthetic(topology, description), 0) << description;
  EXPECT_EQ(hwloc_topology_load(topology), 0) << description;
  std::vector<NodeCores> nodes = cores_by_node(topology, allowed);
  hwloc_topology_destroy(topology);
  return nodes;
}

// How many NUMA nodes have some of these CPUs.
std::size_t nodes_of(const std::vector<NodeCores>& nodes, const Cpus& cpus) {
  return static_cast<std::size_t>(std::count_if(nodes.begin(), nodes.end(), [&](const NodeCores& node) {
    return std::any_of(node.begin(), node.end(),
                       [&](const Cpus& core) { return std::binary_search(cpus.begin(), cpus.end(), core.front()); });
  }));
}

// Every share has whole cores, as many as the others, and shares none.
void expect_sound(const std::vector<NodeCores>& nodes, const std::vector<Cpus>& shares, int ranks) {
  ASSERT_EQ(std::ssize(shares), ranks);
  std::size_t cores = 0;
  for (const NodeCores& node : nodes) cores += node.size();
  std::set<int> taken;
  for (const Cpus& share : shares) {
    EXPECT_TRUE(std::is_sorted(share.begin(), share.end()));
    std::size_t own = 0;
    for (const NodeCores& node : nodes)
      for (const Cpus& core : node) {
        const auto has = [&](int cpu) { return std::binary_search(share.begin(), share.end(), cpu); };
        const auto there = std::count_if(core.begin(), core.end(), has);
        EXPECT_TRUE(there == 0 || there == std::ssize(core)) << "half a core";
        own += there > 0 ? 1 : 0;
      }
    EXPECT_EQ(own, cores / static_cast<std::size_t>(ranks));
    for (const int cpu : share) EXPECT_TRUE(taken.insert(cpu).second) << "CPU " << cpu << " of two ranks";
  }
}

TEST(RankBinding, CoresAreTakenWholeAndByNode) {
  const auto nodes = machine("numa:2 core:8 pu:2");
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].size(), 8u);
  EXPECT_EQ(nodes[1][0], (Cpus{16, 17}));
  for (int ranks = 1; ranks <= 16; ++ranks) {
    SCOPED_TRACE(ranks);
    const auto shares = share_cores(nodes, ranks);
    expect_sound(nodes, shares, ranks);
    // One straddles where an odd number of ranks divides two nodes.
    std::size_t straddling = 0;
    for (const Cpus& share : shares) straddling += nodes_of(nodes, share) > 1 ? 1 : 0;
    EXPECT_EQ(straddling, ranks == 1 || ranks == 3 || ranks == 5 ? 1u : 0u);
  }
  EXPECT_EQ(share_cores(nodes, 2), (std::vector<Cpus>{first_of(16), [] {
                                                        Cpus second = first_of(16);
                                                        for (int& cpu : second) cpu += 16;
                                                        return second;
                                                      }()}));
}

TEST(RankBinding, AMachineOfManyNodesGivesWholeOnes) {
  const auto nodes = machine("pack:2 numa:4 core:8 pu:1");
  for (const int ranks : {1, 2, 4, 8}) {
    const auto shares = share_cores(nodes, ranks);
    expect_sound(nodes, shares, ranks);
    for (const Cpus& share : shares) EXPECT_EQ(nodes_of(nodes, share), 8u / static_cast<unsigned>(ranks));
  }
  for (const int ranks : {3, 5, 6, 7}) {
    SCOPED_TRACE(ranks);
    const auto shares = share_cores(nodes, ranks);
    expect_sound(nodes, shares, ranks);
    const std::size_t least = (64u / static_cast<unsigned>(ranks) + 7) / 8;
    for (const Cpus& share : shares) EXPECT_LE(nodes_of(nodes, share), least + 1);
    EXPECT_EQ(nodes_of(nodes, shares[0]), least);
  }
}

// As in a cgroup or under taskset: parts of nodes, single hardware threads of cores.
TEST(RankBinding, OnlyAllowedCpusAreGiven) {
  const Cpus allowed{1, 2, 3, 7, 8, 16, 17, 18, 40};
  const auto nodes = machine("numa:2 core:8 pu:2", allowed);
  for (int ranks = 1; ranks <= 7; ++ranks) {
    SCOPED_TRACE(ranks);
    const auto shares = share_cores(nodes, ranks);
    if (ranks == 7) {
      EXPECT_TRUE(shares.empty()) << "0, 1, 3 and 4 of the first node, 0 and 1 of the second";
      continue;
    }
    expect_sound(nodes, shares, ranks);
    for (const Cpus& share : shares)
      EXPECT_TRUE(std::includes(allowed.begin(), allowed.end(), share.begin(), share.end()));
  }
  EXPECT_EQ(share_cores(nodes, 3), (std::vector<Cpus>{{16, 17, 18}, {1, 2, 3}, {7, 8}}));
}

TEST(RankBinding, MoreRanksThanCoresHaveNoShares) {
  EXPECT_TRUE(share_cores(machine("numa:1 core:2 pu:2"), 3).empty());
  EXPECT_TRUE(share_cores({}, 1).empty());
}

TEST(RankBinding, RanksAreNearTheirGpus) {
  const auto nodes = machine("numa:4 core:4 pu:1");
  const Cpus third{8, 9, 10, 11}, fourth{12, 13, 14, 15};
  EXPECT_EQ(share_cores(nodes, 4, std::vector<Cpus>{third, fourth, {}, {}}),
            (std::vector<Cpus>{third, fourth, {0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(share_cores(nodes, 8, std::vector<Cpus>{fourth, fourth, third, fourth})[3], (Cpus{10, 11}))
      << "both halves of its own node are taken";
}

TEST(RankBinding, ListsAreShort) {
  EXPECT_EQ(list_of({}), "");
  EXPECT_EQ(list_of({3}), "3");
  EXPECT_EQ(list_of({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
}

TEST(RankBinding, AListOfCpusIsDividedByCoresOfAllSockets) {
  // Two sockets, of which the list has the last core of the first and two of the second.
  const auto nodes = machine("pack:2 numa:1 core:4 pu:2", listed_cpus("6-7,8-11", first_of(16)));
  EXPECT_EQ(share_cores(nodes, 1), (std::vector<Cpus>{{6, 7, 8, 9, 10, 11}}));
  EXPECT_EQ(share_cores(nodes, 3), (std::vector<Cpus>{{6, 7}, {8, 9}, {10, 11}}));
  EXPECT_TRUE(share_cores(nodes, 4).empty());
}

TEST(RankBinding, WrongListsSayWhy) {
  const auto message = [](const std::string& text) {
    try {
      listed_cpus(text, {0, 1, 2, 3, 8});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(message("0-3,8"), "none");
  for (const char* bad : {"3-1", "a", "0,,1", "-1", "0-", "99999999"})
    EXPECT_EQ(message(bad), std::string("--cpu_list ") + bad + ": this is no list of CPUs, as 0-31,64-95");
  EXPECT_EQ(message("2-5,8"),
            "--cpu_list 2-5,8: this process may use CPUs 0-3,8 of this host, and 4-5 are not among them");
}

// The process runs on the listed CPUs alone, until the test gives it back those that it had.
TEST(RankBinding, OneRankIsBoundToItsList) {
  cpu_set_t before, bound;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int last = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &before)) last = cpu;
  test::run_ranks(1, [&](Communicator& ranks) {
    const RankCores free = bind_ranks(ranks, {});
    EXPECT_EQ(free.by, RankCores::By::nobody);
    EXPECT_EQ(free.cpus, CPU_COUNT(&before));
    EXPECT_EQ(free.line, "");
    const RankCores cores = bind_ranks(ranks, {.cpu_list = std::to_string(last)});
    EXPECT_EQ(cores.by, RankCores::By::program);
    EXPECT_EQ(cores.cpus, 1);
    EXPECT_EQ(cores.line, "cores: bound to CPUs " + std::to_string(last) + " (--cpu_list)");
  });
  EXPECT_EQ(sched_getaffinity(0, sizeof bound, &bound), 0);
  EXPECT_EQ(CPU_COUNT(&bound), 1);
  EXPECT_TRUE(CPU_ISSET(last, &bound));
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(RankBinding, WhoMayNotBindSharesEvenly) {
  test::run_ranks(2, [](Communicator& ranks) {
    const RankCores cores = bind_ranks(ranks, {.bind = false});
    EXPECT_EQ(cores.by, RankCores::By::nobody);
    EXPECT_GE(cores.cpus, 1);
    EXPECT_NE(cores.line.find("--bind_cores_to_rank false"), std::string::npos) << cores.line;
  });
}

}  // namespace
}  // namespace so
