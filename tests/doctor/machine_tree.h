// /proc and /sys of machines that never were, below a temporary directory.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "doctor/finding.h"
#include "doctor/machine_files.h"
#include "support/files.h"

namespace so::test {

class MachineTree {
 public:
  void file(const std::string& path, const std::string& text) const {
    const std::filesystem::path full = root_.path() / std::filesystem::path(path).relative_path();
    std::filesystem::create_directories(full.parent_path());
    write_file(full, text);
  }
  void remove(const std::string& path) const {
    std::filesystem::remove_all(root_.path() / std::filesystem::path(path).relative_path());
  }
  const std::filesystem::path& path() const { return root_.path(); }

  // `allowed` as the kernel lists it.
  void process(const std::string& allowed, const std::string& nodes = "0") const {
    file("/proc/self/status", fmt::format("Name:\tsuperoffload\nCpus_allowed:\tffff\nCpus_allowed_list:\t{}\n"
                                          "Mems_allowed:\t1\nMems_allowed_list:\t{}\n",
                                          allowed, nodes));
  }
  // Cores of one hardware thread each, in nodes of the kernel's numbering; each node has an L3 cache of its number.
  void cpus(const std::vector<std::vector<int>>& nodes) const {
    int count = 0;
    for (std::size_t node = 0; node < nodes.size(); ++node) {
      std::string list;
      for (const int cpu : nodes[node]) {
        list += fmt::format("{}{}", list.empty() ? "" : ",", cpu);
        const std::string directory = fmt::format("/sys/devices/system/cpu/cpu{}", cpu);
        file(directory + "/topology/core_cpus_list", fmt::format("{}\n", cpu));
        file(directory + "/cache/index0/level", "1\n");
        file(directory + "/cache/index0/id", "77\n");
        file(directory + "/cache/index3/level", "3\n");
        file(directory + "/cache/index3/id", fmt::format("{}\n", node));
        ++count;
      }
      memory_node(static_cast<int>(node), list, 64);
    }
    file("/sys/devices/system/cpu/online", fmt::format("0-{}\n", count - 1));
    process(fmt::format("0-{}", count - 1), fmt::format("0-{}", nodes.size() - 1));
  }
  void memory_node(int number, const std::string& cpus, int gib) const {
    const std::string directory = fmt::format("/sys/devices/system/node/node{}/", number);
    file(directory + "cpulist", cpus + "\n");
    file(directory + "meminfo", fmt::format("\nNode {0} MemTotal:       {1} kB\nNode {0} MemFree:        {1} kB\n",
                                            number, std::int64_t{gib} << 20));
  }
  void gpu(const std::string& bus, const std::string& near, const std::string& speed = "32.0 GT/s PCIe",
           int lanes = 16) const {
    const std::string device = "/sys/bus/pci/devices/" + bus + "/";
    file(device + "vendor", "0x10de\n");
    file(device + "class", "0x030200\n");
    file(device + "local_cpulist", near + "\n");
    file(device + "current_link_speed", speed + "\n");
    file(device + "current_link_width", fmt::format("{}\n", lanes));
    file(device + "max_link_speed", "32.0 GT/s PCIe\n");
    file(device + "max_link_width", "16\n");
  }

 private:
  TemporaryDirectory root_;
};

// CPUs [first, first + count).
inline std::vector<int> cpus_from(int first, int count) {
  std::vector<int> cpus;
  for (int i = 0; i < count; ++i) cpus.push_back(first + i);
  return cpus;
}

// The finding of a check; the first of several. A failure of the test if there is none.
inline Finding finding(const Findings& findings, const std::string& check) {
  const auto found = std::find_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.check == check; });
  if (found != findings.end()) return *found;
  ADD_FAILURE() << "no finding " << check;
  return {};
}

}  // namespace so::test
