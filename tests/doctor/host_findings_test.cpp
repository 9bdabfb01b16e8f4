// Each finding about the host is provoked once, on a machine that is otherwise in order.
#include "doctor/host_findings.h"

#include <nlohmann/json.hpp>

#include "doctor/examination.h"
#include "doctor/machine_tree.h"

namespace so {
namespace {

using test::finding;

// 16 cores on one node, 128 GiB, a server's settings; no GPU.
class HostFindings : public testing::Test {
 protected:
  HostFindings() {
    tree_.cpus({test::cpus_from(0, 16)});
    tree_.file("/proc/meminfo",
               "MemTotal:       134217728 kB\nMemAvailable:   125829120 kB\nHugepagesize:       2048 kB\n");
    tree_.file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    limits("unlimited", "unlimited");
    for (int cpu = 0; cpu < 16; ++cpu) governor(cpu, "performance");
    tree_.file("/proc/self/cgroup", "0::/job/own\n");
    tree_.file("/sys/fs/cgroup/job/own/cpu.max", "max 100000\n");
    tree_.file("/proc/filesystems", "nodev\tsysfs\n");
  }
  void limits(const std::string& locked, const std::string& address_space) {
    tree_.file("/proc/self/limits",
               fmt::format("Limit                     Soft Limit           Hard Limit           Units     \n"
                           "Max locked memory         {:<20} unlimited            bytes     \n"
                           "Max address space         {:<20} unlimited            bytes     \n",
                           locked, address_space));
  }
  void governor(int cpu, const std::string& name) {
    const std::string directory = fmt::format("/sys/devices/system/cpu/cpu{}/cpufreq/", cpu);
    tree_.file(directory + "scaling_governor", name + "\n");
    tree_.file(directory + "scaling_driver", "cppc_cpufreq\n");
    tree_.file(directory + "scaling_max_freq", "3400000\n");
    tree_.file(directory + "cpuinfo_max_freq", "3400000\n");
  }
  Findings look() const {
    GpuDriver none;
    none.reason = "not here";
    Software software;
    software.mpi = true;
    software.mpi_launcher = "/usr/bin/mpirun";
    return examine(MachineFiles(tree_.path()), none, software);
  }
  // FindingVerdict and parts of what is said of a check.
  void expect(const std::string& check, FindingVerdict verdict, const std::string& found, const std::string& cost,
              const std::string& mend) const {
    const Finding f = finding(look(), check);
    EXPECT_EQ(f.verdict, verdict) << f.found;
    EXPECT_NE(f.found.find(found), std::string::npos) << f.found;
    EXPECT_NE(f.cost.find(cost), std::string::npos) << f.cost;
    EXPECT_NE(f.mend.find(mend), std::string::npos) << f.mend;
  }
  test::MachineTree tree_;
};

TEST_F(HostFindings, AMachineInOrder) {
  for (const Finding& f : look()) {
    const bool unknown = f.check == "gpu" || f.check == "memory_partitions";
    EXPECT_EQ(f.verdict, unknown ? FindingVerdict::unknown : FindingVerdict::ok) << f.check << ": " << f.found;
    EXPECT_EQ(f.mend, "") << f.check;
  }
  expect("cores", FindingVerdict::ok, "16 of 16 CPUs (0-15), 16 cores on 1 NUMA node", "", "");
  expect("memory", FindingVerdict::ok, "128.8 GB available of 137.4 GB", "", "");
}

TEST_F(HostFindings, FewerCpusThanThereAre) {
  tree_.process("0-3");
  expect("cores", FindingVerdict::costs, "4 of 16 CPUs (0-3), 4 cores", "204 with 48 (configs/hardware/h200.json)",
         "taskset -pc 0-15 $$");
  tree_.file("/sys/fs/cgroup/cpuset.cpus.effective", "0-3\n");
  expect("cores", FindingVerdict::costs, "4 of 16 CPUs", "", "--cpuset-cpus=0-15");
}

TEST_F(HostFindings, HardwareThreadsOfACoreAreOneCore) {
  for (int cpu = 0; cpu < 16; ++cpu)
    tree_.file(fmt::format("/sys/devices/system/cpu/cpu{}/topology/core_cpus_list", cpu),
               fmt::format("{},{}\n", cpu % 8, cpu % 8 + 8));
  expect("cores", FindingVerdict::ok, "16 of 16 CPUs (0-15), 8 cores", "", "");
}

TEST_F(HostFindings, CoresFarFromTheGpu) {
  tree_.cpus({test::cpus_from(0, 8), test::cpus_from(8, 8)});
  tree_.gpu("0000:4e:00.0", "8-15");
  expect("cores_near_gpu", FindingVerdict::ok, "8 of the 16 that it may use (8-15), near 0000:4e:00.0", "", "");
  tree_.process("0-7", "0-1");
  expect("cores_near_gpu", FindingVerdict::costs, "none: this process may run on 0-7, and 8-15 are near 0000:4e:00.0",
         "", "taskset -pc 8-15 $$");
  tree_.gpu("0000:9e:00.0", "0-7");
  expect("cores_near_gpu", FindingVerdict::costs, "none: ", "", "taskset -pc 0-15 $$");
  tree_.file("/sys/bus/pci/devices/0000:4e:00.0/local_cpulist", "\n");
  expect("cores_near_gpu", FindingVerdict::unknown, "does not say", "", "");
}

TEST_F(HostFindings, AQuotaOfTheUnifiedHierarchy) {
  tree_.file("/sys/fs/cgroup/job/cpu.max", "400000 100000\n");
  tree_.file("/sys/fs/cgroup/job/cpu.stat", "usage_usec 5\nnr_periods 9\nnr_throttled 7\n");
  tree_.file("/sys/fs/cgroup/job/own/cpu.max", "1000000 100000\n");
  expect("cpu_quota", FindingVerdict::costs, "the time of 4 CPUs, for 16 that it may run on; stopped 7 times so far",
         "at most 25%", "echo max > /sys/fs/cgroup/job/cpu.max (or superoffload train --cpu_threads 4)");
}

TEST_F(HostFindings, AQuotaOfTheFirstHierarchy) {
  tree_.file("/proc/self/cgroup", "5:cpu,cpuacct:/box\n4:memory:/box\n0::/\n");
  tree_.file("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n");
  tree_.file("/sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
  expect("cpu_quota", FindingVerdict::ok, "none", "", "");
  tree_.file("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "50000\n");
  expect("cpu_quota", FindingVerdict::costs, "the time of 0.5 CPUs", "",
         "echo -1 > /sys/fs/cgroup/cpu/box/cpu.cfs_quota_us");
}

TEST_F(HostFindings, Governors) {
  governor(3, "schedutil");
  expect("governor", FindingVerdict::costs, "performance (CPUs 0-2,4-15); schedutil (CPUs 3)", "nobody has measured",
         "cpupower frequency-set -g performance");
  governor(3, "performance");
  tree_.file("/sys/devices/system/cpu/cpu5/cpufreq/scaling_max_freq", "1700000\n");
  expect("governor", FindingVerdict::costs, "performance", "held to 50% of the greatest", "cpupower");
  for (int cpu = 0; cpu < 16; ++cpu) {
    governor(cpu, "powersave");
    tree_.file(fmt::format("/sys/devices/system/cpu/cpu{}/cpufreq/scaling_driver", cpu), "intel_pstate\n");
    tree_.file(fmt::format("/sys/devices/system/cpu/cpu{}/cpufreq/scaling_max_freq", cpu), "3400000\n");
    tree_.file(fmt::format("/sys/devices/system/cpu/cpu{}/cpufreq/energy_performance_preference", cpu),
               "balance_performance\n");
  }
  expect("governor", FindingVerdict::ok, "powersave, balance_performance (CPUs 0-15)", "", "");
  for (int cpu = 0; cpu < 16; ++cpu) tree_.remove(fmt::format("/sys/devices/system/cpu/cpu{}/cpufreq", cpu));
  expect("governor", FindingVerdict::unknown, "shows none", "", "");
}

// A superchip: the GPU's memory is a node without CPUs.
TEST_F(HostFindings, NodesWithoutCpus) {
  tree_.memory_node(1, "", 96);
  expect("memory_nodes", FindingVerdict::ok, "0 (CPUs 0-15, 68.7 GB), 1 (no CPUs, 103.1 GB)", "", "");
  tree_.process("0-15", "0-1");
  expect("memory_nodes", FindingVerdict::costs, "1 (no CPUs, 103.1 GB)", "memory of another kind",
         "numactl --membind=0 ");
  for (int node = 2; node <= 8; ++node) tree_.memory_node(node, "", 0);
  tree_.process("0-15", "0-8");
  expect("memory_nodes", FindingVerdict::costs, "1 (no CPUs, 103.1 GB), 7 without CPUs and memory",
         "falls into node 1,", "numactl --membind=0 ");
  tree_.file("/proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\n");
  tree_.gpu("0009:01:00.0", "0-15");
  expect("memory_nodes", FindingVerdict::ok,
         "7 without CPUs and memory; the program takes host memory from node 0 alone, since node 1 is the GPU's own",
         "", "");
  tree_.file("/proc/sys/kernel/numa_balancing", "1\n");
  expect("numa_balancing", FindingVerdict::costs, "on", "page faults", "sysctl -w kernel.numa_balancing=0");
  tree_.file("/proc/sys/kernel/numa_balancing", "0\n");
  expect("numa_balancing", FindingVerdict::ok, "off", "", "");
}

TEST_F(HostFindings, ACgroupOfLittleMemory) {
  tree_.file("/sys/fs/cgroup/job/memory.max", "17179869184\n");
  tree_.file("/sys/fs/cgroup/job/memory.current", "1073741824\n");
  expect("memory", FindingVerdict::costs, "16.1 GB available of 137.4 GB: a cgroup limits it",
         "of 1.0 billion parameters; without the limit 8.1 billion",
         "echo max > /sys/fs/cgroup/job/memory.max (or give the container more --memory)");
  tree_.file("/proc/self/cgroup", "4:memory:/box\n");
  tree_.file("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "17179869184\n");
  tree_.file("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "1073741824\n");
  expect("memory", FindingVerdict::costs, "16.1 GB available", "",
         "echo -1 > /sys/fs/cgroup/memory/box/memory.limit_in_bytes");
}

TEST_F(HostFindings, PagesAndLimits) {
  tree_.file("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  expect("huge_pages", FindingVerdict::costs, "never", "small pages",
         "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
  tree_.remove("/sys/kernel/mm/transparent_hugepage/enabled");
  expect("huge_pages", FindingVerdict::unknown, "", "", "");
  limits("8388608", "137438953472");
  expect("locked_memory", FindingVerdict::unknown, "8.4 MB", "a sandbox or a virtual machine may",
         "ulimit -l unlimited");
  expect("address_space", FindingVerdict::costs, "137.4 GB", "CUDA reserves", "ulimit -v unlimited");
}

TEST_F(HostFindings, PartitionsOfMemory) {
  expect("memory_partitions", FindingVerdict::unknown, "no resctrl", "", "");
  tree_.file("/proc/filesystems", "nodev\tsysfs\nnodev\tresctrl\n");
  expect("memory_partitions", FindingVerdict::unknown, "not mounted", "not been measured",
         "mount -t resctrl resctrl /sys/fs/resctrl");
  tree_.file("/proc/self/mounts", "resctrl /sys/fs/resctrl resctrl rw,relatime 0 0\n");
  tree_.file("/sys/fs/resctrl/schemata", "    L3:0=fff\n");
  tree_.file("/sys/fs/resctrl/info/L3/cbm_mask", "fff\n");
  expect("memory_partitions", FindingVerdict::unknown, "not set up (L3 of 12 ways)", "",
         "superoffload doctor --partition");
  for (const char* group : {"superoffload_feed", "superoffload_adamw"})
    tree_.file(fmt::format("/sys/fs/resctrl/{}/schemata", group), "L3:0=fff\n");
  expect("memory_partitions", FindingVerdict::ok, "set up (L3 of 12 ways)", "", "");
}

// Whatever stands in the files, each subject gets its line.
TEST_F(HostFindings, OddContents) {
  const auto paths = [&] {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(tree_.path())) {
      const std::string path = entry.path().string();
      const bool another_cpus =
          path.find("/cpu/cpu") != std::string::npos && path.find("/cpu/cpu0/") == std::string::npos;
      if (entry.is_regular_file() && !another_cpus) files.push_back(entry.path());
    }
    return files;
  }();
  tree_.gpu("0000:01:00.0", "0-15");
  const std::size_t subjects = look().size();
  for (const std::string& odd :
       {std::string(), std::string("\n"), std::string("18446744073709551616"), std::string("-1"),
        std::string("0-18446744073709551615"), std::string("::::\n=;=\n[\n]"), std::string(5000, '9'),
        std::string("Max locked memory"), std::string("\0\xff\x80", 3)}) {
    for (const auto& path : paths) {
      const std::string before = test::read_file(path);
      test::write_file(path, odd);
      const Findings findings = look();
      EXPECT_GE(findings.size() + 1, subjects) << path << ": " << odd;
      EXPECT_FALSE(findings_text(findings, 120).empty());
      test::write_file(path, before);
    }
    for (const auto& path : paths) test::write_file(path, odd);
    EXPECT_GE(look().size() + 1, subjects) << odd;
  }
  for (const auto& path : paths) std::filesystem::remove(path);
  EXPECT_EQ(finding(look(), "cores").verdict, FindingVerdict::unknown);
  EXPECT_EQ(finding(look(), "memory").verdict, FindingVerdict::unknown);
}

TEST_F(HostFindings, TextAndJson) {
  Findings findings{{.check = "a", .subject = "first", .found = "x"},
                    {.check = "b",
                     .subject = "the second",
                     .found = "y",
                     .verdict = FindingVerdict::costs,
                     .cost = "a tenth",
                     .mend = "do it"}};
  EXPECT_FALSE(any_wrong(findings));
  EXPECT_EQ(findings_text(findings, 120),
            "ok     first       x\n"
            "COSTS  the second  y\n"
            "            cost:  a tenth\n"
            "            mend:  do it\n"
            "\n"
            "1 ok, 1 cost something, 0 wrong, 0 not known here (?)\n");
  findings[0].verdict = FindingVerdict::wrong;
  EXPECT_TRUE(any_wrong(findings));
  const auto j = nlohmann::json::parse(findings_json(findings));
  EXPECT_EQ(j.at("wrong"), 1);
  EXPECT_EQ(j.at("findings").at(1), nlohmann::json::parse(R"({"check": "b", "subject": "the second", "found": "y",
    "verdict": "costs", "cost": "a tenth", "mend": "do it"})"));
  findings[0].found = std::string(60, 'w') + " " + std::string(60, 'v') + "\x1b[31m";
  const std::string text = findings_text(findings, 120);
  EXPECT_NE(text.find("w\n" + std::string(19, ' ') + "v"), std::string::npos) << text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace so
