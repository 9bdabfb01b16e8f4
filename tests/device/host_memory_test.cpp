#include "base/host_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "device/host_pages.h"
#include "support/files.h"

namespace so {
namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

// /proc and /sys/fs/cgroup of a machine that never was, below a temporary directory.
class HostMemoryTest : public testing::Test {
 protected:
  void file(const std::string& path, const std::string& text) {
    const std::filesystem::path full = root_.path() / path;
    std::filesystem::create_directories(full.parent_path());
    test::write_file(full, text);
  }
  void meminfo(std::size_t available) {
    file("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:             512 kB\nMemAvailable:   " +
                             std::to_string(available / 1024) + " kB\nBuffers:            1 kB\n");
  }
  // A group of the unified hierarchy. `limit` as the kernel prints it.
  void v2(const std::string& group, const std::string& limit, std::size_t current, std::size_t inactive_file,
          std::size_t active_file = 0) {
    const std::string directory = "sys/fs/cgroup" + group + "/";
    file(directory + "memory.max", limit + "\n");
    file(directory + "memory.current", std::to_string(current) + "\n");
    file(directory + "memory.stat", "anon 1\nfile 2\ninactive_anon 3\nactive_file " + std::to_string(active_file) +
                                        "\ninactive_file " + std::to_string(inactive_file) + "\nunevictable 5\n");
  }
  void v1(const std::string& group, const std::string& limit, std::size_t usage, std::size_t total_inactive_file,
          std::size_t total_active_file = 0) {
    const std::string directory = "sys/fs/cgroup/memory" + group + "/";
    file(directory + "memory.limit_in_bytes", limit + "\n");
    file(directory + "memory.usage_in_bytes", std::to_string(usage) + "\n");
    file(directory + "memory.stat", "cache 9\ninactive_file 7\nactive_file 8\ntotal_cache 9\ntotal_inactive_file " +
                                        std::to_string(total_inactive_file) + "\ntotal_active_file " +
                                        std::to_string(total_active_file) + "\n");
  }
  static std::string bytes(std::size_t mib) { return std::to_string(mib * mebibyte); }

  void expect(std::size_t available, const std::string& limited_by) {
    const HostMemory memory = available_host_memory(root_.path().string());
    EXPECT_EQ(memory.available, available) << memory.limited_by;
    EXPECT_EQ(memory.limited_by, limited_by);
  }
  std::string root() const { return root_.path().string(); }
  // As limited_by names the group.
  std::string group(const std::string& path) const {
    return "cgroup " + root_.path().string() + "/sys/fs/cgroup" + path;
  }

 private:
  test::TemporaryDirectory root_;
};

// A Grace: its own memory is node 0, the GPU's node 1, and the kernel keeps nodes without memory besides.
class SuperchipMemory : public HostMemoryTest {
 protected:
  SuperchipMemory() {
    meminfo(3000 * mebibyte);
    node(0, "0-71\n", 4000, 1900, 100);
    node(1, "\n", 1000, 1000, 0);
    node(2, "\n", 0, 0, 0);
    file("proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n");
    process("0-2");
    gpu("0x10de");
  }
  void node(int number, const std::string& cpus, std::size_t mib, std::size_t free, std::size_t cache) {
    const std::string directory = "sys/devices/system/node/node" + std::to_string(number) + "/";
    const auto line = [&](const std::string& what, std::size_t size) {
      return "Node " + std::to_string(number) + " " + what + ":       " + std::to_string(size * 1024) + " kB\n";
    };
    file(directory + "cpulist", cpus);
    file(directory + "meminfo", line("MemTotal", mib) + line("MemFree", free) + line("Active", 7777) +
                                    line("Active(file)", cache / 4) + line("Inactive(file)", cache - cache / 4));
  }
  void gpu(const std::string& vendor) {
    file("sys/bus/pci/devices/0009:01:00.0/vendor", vendor + "\n");
    file("sys/bus/pci/devices/0009:01:00.0/class", "0x030200\n");
  }
  void process(const std::string& nodes) { file("proc/self/status", "Name:\tx\nMems_allowed_list:\t" + nodes + "\n"); }
  NumaNodes nodes() const { return numa_nodes(root()); }
};

TEST_F(SuperchipMemory, NodesOfGpusAreLeftToThem) {
  EXPECT_TRUE(nodes().superchip);
  ASSERT_EQ(nodes().all.size(), 2u) << "a node without memory is none";
  EXPECT_TRUE(nodes().all[0].has_cpus);
  EXPECT_EQ(nodes().all[0].available, 2000 * mebibyte);
  EXPECT_FALSE(nodes().all[1].has_cpus);
  EXPECT_EQ(nodes().host_nodes(), std::vector<int>{0});
  node(3, "72-143\n", 4000, 1000, 0);
  process("0-3");
  EXPECT_EQ(nodes().host_nodes(), (std::vector<int>{0, 3})) << "two superchips in one host";
  process("0,3");
  EXPECT_EQ(nodes().host_nodes(), std::vector<int>{}) << "the cpuset has left them out";
}

TEST_F(SuperchipMemory, ElsewhereANodeWithoutCpusIsMemoryLikeAnother) {
  gpu("0x1002");
  EXPECT_EQ(nodes().host_nodes(), std::vector<int>{});
  gpu("0x10de");
  file("proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\n");
  EXPECT_EQ(nodes().host_nodes(), std::vector<int>{});
}

TEST_F(SuperchipMemory, OnlyTheNodesOfThePolicyAndTheCpusetCount) {
  EXPECT_EQ(available_host_memory(root()).available, 3000 * mebibyte);
  const HostMemory bound = available_host_memory(root(), {0});
  EXPECT_EQ(bound.available, 2000 * mebibyte);
  EXPECT_EQ(bound.limited_by, "free memory of NUMA node 0");
  EXPECT_EQ(available_host_memory(root(), {0, 1}).limited_by, "free memory");
  process("1");
  EXPECT_EQ(available_host_memory(root()).available, 1000 * mebibyte);
  EXPECT_EQ(available_host_memory(root(), {0}).available, 3000 * mebibyte)
      << "a policy that contradicts the cpuset says nothing";
}

TEST_F(HostMemoryTest, FreeMemoryAlone) {
  meminfo(1000 * mebibyte);
  expect(1000 * mebibyte, "free memory");
}

TEST_F(HostMemoryTest, NothingToReadLimitsNothing) { expect(SIZE_MAX, "nothing known"); }

TEST_F(HostMemoryTest, V2LimitLessWhatIsHeldCacheThatCanGoNotCounted) {
  meminfo(1000 * mebibyte);
  file("proc/self/cgroup", "0::/user.slice/run\n");
  v2("/user.slice/run", bytes(500), 300 * mebibyte, 120 * mebibyte);
  expect((500 - 300 + 120) * mebibyte, group("/user.slice/run"));
}

TEST_F(HostMemoryTest, V2LimitsOfGroupsAboveHoldToo) {
  meminfo(1000 * mebibyte);
  file("proc/self/cgroup", "0::/a/b/c\n");
  v2("/a", bytes(600), 450 * mebibyte, 0);  // its other children hold most of it
  v2("/a/b", "max", 200 * mebibyte, 0);
  v2("/a/b/c", bytes(400), 100 * mebibyte, 0);
  expect(150 * mebibyte, group("/a"));
}

TEST_F(HostMemoryTest, V2TheInnermostMayBeTheLeast) {
  meminfo(1000 * mebibyte);
  file("proc/self/cgroup", "0::/a/b\n");
  v2("/a", bytes(600), 100 * mebibyte, 0);
  v2("/a/b", bytes(64), 10 * mebibyte, 0);
  expect(54 * mebibyte, group("/a/b"));
}

TEST_F(HostMemoryTest, V2MaxIsNoLimit) {
  meminfo(1000 * mebibyte);
  file("proc/self/cgroup", "0::/a\n");
  v2("/a", "max", 5000 * mebibyte, 0);
  expect(1000 * mebibyte, "free memory");
}

TEST_F(HostMemoryTest, AGroupOtherThanOursDoesNotMatter) {
  meminfo(1000 * mebibyte);
  file("proc/self/cgroup", "0::/a/b\n");
  v2("/a/c", bytes(1), 0, 0);
  v2("/ab", bytes(1), 0, 0);
  expect(1000 * mebibyte, "free memory");
}

// The host's path, which does not exist in the container's own view: the mount's root is the container's group.
TEST_F(HostMemoryTest, V2InAContainerTheRootOfTheMountCounts) {
  meminfo(1000 * mebibyte);
  file("proc/self/cgroup", "0::/kubepods.slice/pod1/cri-0123.scope\n");
  v2("", bytes(256), 56 * mebibyte, 0);
  expect(200 * mebibyte, group(""));
}

// With a namespace of its own, a process sees paths that climb out of it.
TEST_F(HostMemoryTest, V2PathsThatClimbOutOfTheirNamespaceEnd) {
  meminfo(1000 * mebibyte);
  for (const char* path : {"0::/\n", "0::/../../elsewhere\n", "0::\n", "0::relative/path\n"}) {
    file("proc/self/cgroup", path);
    v2("", bytes(256), 56 * mebibyte, 0);
    expect(200 * mebibyte, group(""));
  }
}

TEST_F(HostMemoryTest, V1LimitLessWhatIsHeld) {
  meminfo(1000 * mebibyte);
  file("proc/self/cgroup", "12:cpuset:/other\n9:cpu,cpuacct:/other\n8:memory:/docker/0123\n1:name=systemd:/other\n");
  v1("/docker/0123", bytes(512), 400 * mebibyte, 150 * mebibyte);
  v1("/docker", bytes(2000), 900 * mebibyte, 0);
  v1("", "9223372036854771712", 5000 * mebibyte, 0);  // how v1 writes "none"
  expect(262 * mebibyte, group("/memory/docker/0123"));
}

TEST_F(HostMemoryTest, V1InAContainerTheRootOfTheMountCounts) {
  meminfo(1000 * mebibyte);
  file("proc/self/cgroup", "8:hugetlb,memory:/docker/0123\n");
  v1("", bytes(300), 100 * mebibyte, 0);
  expect(200 * mebibyte, group("/memory"));
}

TEST_F(HostMemoryTest, V1OtherControllersPathsAreNotMemorys) {
  meminfo(1000 * mebibyte);
  file("proc/self/cgroup", "8:memory_other,cpu:/a\n7:name=memory:/a\n");
  v1("/a", bytes(1), 0, 0);
  expect(1000 * mebibyte, "free memory");
}

TEST_F(HostMemoryTest, BothHierarchiesAtOnceTheLeastWins) {
  meminfo(1000 * mebibyte);
  file("proc/self/cgroup", "8:memory:/a\n0::/b\n");
  v1("/a", bytes(400), 100 * mebibyte, 0);
  v2("/b", bytes(300), 100 * mebibyte, 0);
  expect(200 * mebibyte, group("/b"));
  v1("/a", bytes(250), 100 * mebibyte, 0);
  expect(150 * mebibyte, group("/memory/a"));
}

TEST_F(HostMemoryTest, NothingIsLeftOfALimitThatIsExceeded) {
  meminfo(1000 * mebibyte);
  file("proc/self/cgroup", "0::/a\n");
  v2("/a", bytes(100), 130 * mebibyte, 10 * mebibyte);
  expect(0, group("/a"));
}

// A file that was read twice, as a model's weights are, is in the active part; all of it can be dropped.
TEST_F(HostMemoryTest, CacheThatWasReadTwiceCanGoToo) {
  meminfo(1000 * mebibyte);
  file("proc/self/cgroup", "8:memory:/a\n0::/b\n");
  v2("/b", bytes(500), 490 * mebibyte, 20 * mebibyte, 380 * mebibyte);
  expect(410 * mebibyte, group("/b"));
  v1("/a", bytes(400), 390 * mebibyte, 30 * mebibyte, 300 * mebibyte);
  expect(340 * mebibyte, group("/memory/a"));
}

// The files are not read at one moment, so the cache may seem larger than what is held.
TEST_F(HostMemoryTest, CacheBeyondWhatIsHeldAddsNothing) {
  meminfo(1000 * mebibyte);
  file("proc/self/cgroup", "0::/a\n");
  v2("/a", bytes(100), 10 * mebibyte, 70 * mebibyte, 5 * mebibyte);
  expect(100 * mebibyte, group("/a"));
}

TEST_F(HostMemoryTest, WhatCannotBeUnderstoodLimitsNothing) {
  meminfo(1000 * mebibyte);
  file("proc/self/cgroup", "\nnonsense\n0:\n0::/a\n");
  for (const char* limit : {"", "-1", "many", "12kB", "1e9", "99999999999999999999999999"}) {
    v2("/a", limit, 0, 0);
    expect(1000 * mebibyte, "free memory");
  }
  file("proc/meminfo", "MemAvailable:\n");
  v2("/a", bytes(64), 0, 0);
  expect(64 * mebibyte, group("/a"));
}

// ---- This machine and this process ----

std::size_t status_kb(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key + ":")) return std::stoul(line.substr(key.size() + 1));
  ADD_FAILURE() << key;
  return 0;
}

TEST(HostMemory, OfThisMachineIsKnown) {
  const HostMemory memory = available_host_memory();
  EXPECT_NE(memory.limited_by, "nothing known");
  EXPECT_GT(memory.available, 0u);
  EXPECT_LT(memory.available, std::size_t{1} << 50);
}

TEST(HostMemory, TheAddressSpaceLimitCounts) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const std::size_t room = 64 * mebibyte;
  rlimit tight = before;
  tight.rlim_cur = status_kb("VmSize") * 1024 + room;
  if (before.rlim_max < tight.rlim_cur) GTEST_SKIP() << "the limit is lower already";
  const HostMemory without = available_host_memory();
  if (without.available < 2 * room) GTEST_SKIP() << "only " << without.available << " bytes: " << without.limited_by;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  const HostMemory memory = available_host_memory();
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(memory.limited_by, "RLIMIT_AS (ulimit -v)");
  EXPECT_LE(memory.available, room + mebibyte);  // the process may have given pages back since
  EXPECT_GT(memory.available, room / 2);         // reading /proc takes a little
}

TEST(HostMemory, TouchedPagesAreResidentAndThePeakRemembersThem) {
  const std::size_t before = resident_bytes();
  EXPECT_GT(before, 0u);
  // Pages of its own, which a sanitizer does not hold back when they are freed.
  void* const touched = map_host_pages(64 * mebibyte);
  ASSERT_NE(touched, nullptr);
  std::memset(touched, 1, 64 * mebibyte);
  EXPECT_GT(resident_bytes() + 8 * mebibyte, before + 64 * mebibyte);  // the kernel's counters lag by some pages
  unmap_host_pages(touched, 64 * mebibyte);
  EXPECT_GT(peak_resident_bytes() + 8 * mebibyte, before + 64 * mebibyte);
  EXPECT_GE(peak_resident_bytes(), resident_bytes() / 2);
  forget_peak_resident();
  if (access("/proc/self/clear_refs", W_OK) != 0) GTEST_SKIP() << "this kernel forgets no peak";
  EXPECT_LT(peak_resident_bytes(), before + 32 * mebibyte);
}

}  // namespace
}  // namespace so
