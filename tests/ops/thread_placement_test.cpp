#include "ops/thread_placement.h"

#include <gtest/gtest.h>

#include <set>

#include "device/gpu_place.h"
#include "support/files.h"

namespace so::thread_placement_test {
namespace {

using Cores = std::vector<std::vector<int>>;
using CpuList = std::vector<int>;

// Two sockets of four cores with two hardware threads each, numbered as Linux does: siblings are 8 apart.
Cores two_sockets() { return {{0, 8}, {1, 9}, {2, 10}, {3, 11}, {4, 12}, {5, 13}, {6, 14}, {7, 15}}; }
const CpuList second{4, 5, 6, 7, 12, 13, 14, 15};

TEST(ThreadPlacement, OneSocketLeavesItsFirstCore) {
  const ThreadPlacement p = place_threads(Cores{{0}, {1}, {2}, {3}}, 0, {});
  EXPECT_EQ(p.feeding, CpuList{0});
  EXPECT_FALSE(p.near);
  EXPECT_EQ(p.workers, (CpuList{1, 2, 3}));
  EXPECT_EQ(placement_line(p),
            "threads: AdamW and other host work on 3 CPUs, 1-3, a thread each; the thread that feeds the GPU has CPU 0 "
            "for itself");
}

TEST(ThreadPlacement, TheGpusSocketComesFirst) {
  const ThreadPlacement all = place_threads(two_sockets(), 0, second);
  EXPECT_EQ(all.feeding, (CpuList{4, 12}));
  EXPECT_TRUE(all.near);
  EXPECT_EQ(all.workers, (CpuList{5, 6, 7, 0, 1, 2, 3, 13, 14, 15, 8, 9, 10, 11}));
  EXPECT_EQ(place_threads(two_sockets(), 3, second).workers, (CpuList{5, 6, 7})) << "few threads stay near the GPU";
  EXPECT_NE(placement_line(all).find("has CPUs 4,12, near the GPU, for itself"), std::string::npos)
      << placement_line(all);
  const ThreadPlacement unknown = place_threads(two_sockets(), 0, {});
  EXPECT_EQ(unknown.feeding, (CpuList{0, 8}));
  EXPECT_FALSE(unknown.near);
  EXPECT_FALSE(place_threads(two_sockets(), 0, {99}).near) << "the GPU's socket is not this process's";
}

TEST(ThreadPlacement, NoCpuIsGivenTwice) {
  for (int threads = 0; threads <= 20; ++threads) {
    const ThreadPlacement p = place_threads(two_sockets(), threads, second);
    const std::set<int> given(p.workers.begin(), p.workers.end());
    EXPECT_EQ(given.size(), p.workers.size()) << threads;
    for (const int cpu : p.feeding) EXPECT_FALSE(given.contains(cpu)) << threads;
    if (threads > 0) {
      EXPECT_EQ(p.workers.size(), std::min<std::size_t>(static_cast<std::size_t>(threads), 16));
    }
    EXPECT_EQ(p.feeding.empty(), threads > 14) << threads;
  }
}

TEST(ThreadPlacement, FewCoresAreAllForTheWorkers) {
  const ThreadPlacement p = place_threads(Cores{{0}, {1}}, 0, {});
  EXPECT_TRUE(p.feeding.empty());
  EXPECT_EQ(p.workers, (CpuList{0, 1}));
  EXPECT_NE(placement_line(p).find("no core is left"), std::string::npos);
}

TEST(GpuPlace, TheKernelsListIsRead) {
  const test::TemporaryDirectory root;
  const std::string folder = root.path().string() + "/sys/bus/pci/devices/0000:3b:00.0";
  std::filesystem::create_directories(folder);
  test::write_file(folder + "/local_cpulist", "4-7,12-15\n");
  EXPECT_EQ(cpus_near("0000:3b:00.0", root.path().string()), second);
  EXPECT_EQ(cpus_near("0000:3c:00.0", root.path().string()), CpuList{});
  EXPECT_EQ(cpus_near("", root.path().string()), CpuList{});
  test::write_file(folder + "/local_cpulist", "\n");
  EXPECT_EQ(cpus_near("0000:3b:00.0", root.path().string()), CpuList{});
}

}  // namespace
}  // namespace so::thread_placement_test
