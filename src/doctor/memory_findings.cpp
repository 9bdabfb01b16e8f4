#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/host_memory.h"
#include "base/proc_text.h"
#include "base/quantities.h"
#include "doctor/host_findings.h"

namespace so {
namespace {

// "MemTotal:       24684096 kB" in bytes.
std::optional<std::uint64_t> meminfo(const MachineFiles& files, std::string_view key) {
  const auto text = files.text("/proc/meminfo");
  const auto value = text ? value_after(*text, key) : std::nullopt;
  const auto words = words_of(value.value_or(std::string_view()));
  const auto number = words.empty() ? std::nullopt : parse_whole(words[0]);
  if (!number || *number > (std::uint64_t{1} << 50)) return std::nullopt;
  return *number * 1024;
}

// Returns the soft limit in a line of /proc/self/limits; nothing where there is none.
std::optional<std::uint64_t> soft_limit(const MachineFiles& files, std::string_view name) {
  const auto text = files.text("/proc/self/limits");
  const auto value = text ? value_after(*text, name) : std::nullopt;
  const auto words = words_of(value.value_or(std::string_view()));
  return words.empty() ? std::nullopt : parse_whole(words[0]);  // "unlimited" is no number
}

bool is_superchip(const MachineFiles& files) {
  return numa_nodes(files.root() == "/" ? std::string() : files.root().string()).superchip;
}

// The parameters whose fp32 state, and bf16 gradient and weight, fit into memory.
std::string parameters_in(std::size_t bytes) {
  return fmt::format("{:.1f} billion parameters", static_cast<double>(bytes) / 16e9);
}

}  // namespace

void find_memory_nodes(const MachineFiles& files, const Processors& machine, Findings& findings) {
  Finding f{.check = "memory_nodes", .subject = "NUMA nodes"};
  std::string with_cpus, others;
  std::size_t empty = 0;  // a superchip's kernel keeps some for parts that a GPU's memory might be cut into
  for (const MemoryNode& node : machine.nodes) {
    if (node.cpus.empty() && node.bytes == 0) {
      ++empty;
      continue;
    }
    f.found += fmt::format("{}{} ({}{})", f.found.empty() ? "" : ", ", node.number,
                           node.cpus.empty() ? "no CPUs" : "CPUs " + list_of(node.cpus),
                           node.bytes > 0 ? ", " + format_bytes(node.bytes) : "");
    std::string& list = node.cpus.empty() ? others : with_cpus;
    if (!node.cpus.empty() || node.allowed) list += fmt::format("{}{}", list.empty() ? "" : ",", node.number);
  }
  if (empty > 0) f.found += fmt::format(", {} without CPUs and memory", empty);
  if (machine.nodes.empty()) {
    f.found = "the kernel does not say (/sys/devices/system/node)";
    f.verdict = FindingVerdict::unknown;
  } else if (!others.empty() && !with_cpus.empty() && is_superchip(files)) {
    f.found += fmt::format("; the program takes host memory from node {} alone, since node {} is the GPU's own",
                           with_cpus, others);
  } else if (!others.empty() && !with_cpus.empty()) {
    f.verdict = FindingVerdict::costs;
    f.cost = fmt::format("what does not fit node {} falls into node {}, which has no CPUs: memory of another kind",
                         with_cpus, others);
    f.mend = fmt::format("numactl --membind={} superoffload train ...", with_cpus);
  }
  const bool several = machine.nodes.size() - empty > 1;
  findings.push_back(std::move(f));

  const auto balancing = files.number("/proc/sys/kernel/numa_balancing");
  if (!several || !balancing) return;
  Finding b{.check = "numa_balancing", .subject = "NUMA balancing", .found = *balancing == 0 ? "off" : "on"};
  if (*balancing != 0) {
    b.verdict = FindingVerdict::costs;
    b.cost =
        "the kernel takes page faults to move memory that AdamW streams through; nobody has measured how many here";
    b.mend = "sysctl -w kernel.numa_balancing=0";
  }
  findings.push_back(std::move(b));
}

void find_memory(const MachineFiles& files, Findings& findings) {
  Finding f{.check = "memory", .subject = "host memory"};
  const std::string root = files.root() == "/" ? std::string() : files.root().string();
  const HostMemory memory = available_host_memory(root);
  const auto free = meminfo(files, "MemAvailable"), total = meminfo(files, "MemTotal");
  if (!free || !total) {
    f.found = "/proc/meminfo does not say";
    f.verdict = FindingVerdict::unknown;
  } else {
    f.found = fmt::format("{} available of {}", format_bytes(memory.available), format_bytes(*total));
    constexpr std::string_view cgroup = "cgroup ";
    if (memory.limited_by.starts_with(cgroup)) {
      const std::string directory = memory.limited_by.substr(cgroup.size() + root.size());
      f.found += ": a cgroup limits it";
      f.verdict = FindingVerdict::costs;
      f.cost = fmt::format("room for the fp32 state, gradient and weight (16 bytes) of {}; without the limit {}",
                           parameters_in(memory.available), parameters_in(*free));
      f.mend = directory.find("/memory") == std::string::npos || files.exists(directory + "/memory.max")
                   ? fmt::format("echo max > {}/memory.max", directory)
                   : fmt::format("echo -1 > {}/memory.limit_in_bytes", directory);
      f.mend += " (or give the container more --memory)";
    } else {
      f.found +=
          fmt::format(", for the fp32 state, gradient and weight (16 bytes) of {}", parameters_in(memory.available));
    }
  }
  findings.push_back(std::move(f));
}

void find_huge_pages(const MachineFiles& files, Findings& findings) {
  Finding f{.check = "huge_pages", .subject = "transparent huge pages"};
  const auto text = files.text("/sys/kernel/mm/transparent_hugepage/enabled");
  const auto chosen = text ? chosen_word(*text) : std::nullopt;
  if (!chosen) {
    f.found = "the kernel has none, or does not say";
    f.verdict = FindingVerdict::unknown;
  } else {
    const auto size = meminfo(files, "Hugepagesize");
    f.found = std::string(*chosen) + (size ? fmt::format(", of {} KiB", *size / 1024) : "");
    if (*chosen == "never") {
      f.verdict = FindingVerdict::costs;
      f.cost =
          "optimizer state, gradients and weights lie in small pages; nobody has measured how much slower AdamW is";
      f.mend = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
    } else if (*chosen == "madvise") {
      f.found += "; the program asks for them";
    }
  }
  findings.push_back(std::move(f));
}

void find_process_limits(const MachineFiles& files, Findings& findings) {
  Finding f{.check = "locked_memory", .subject = "limit on locked memory", .found = "none"};
  if (!files.text("/proc/self/limits")) {
    f.found = "/proc/self/limits does not say";
    f.verdict = FindingVerdict::unknown;
  } else if (const auto locked = soft_limit(files, "Max locked memory")) {
    f.found = format_bytes(*locked);
    f.verdict = FindingVerdict::unknown;
    f.cost =
        "NVIDIA's driver does not count what it pins against it; a sandbox or a virtual machine may, and then copies are "
        "several times as slow";
    f.mend =
        "ulimit -l unlimited (beyond the hard limit: memlock in /etc/security/limits.conf, docker --ulimit memlock=-1)";
  }
  findings.push_back(std::move(f));

  struct Limit {
    const char *line, *subject, *option;
  };
  for (const Limit& limit :
       {Limit{"Max address space", "limit on address space", "v"}, Limit{"Max data size", "limit on data", "d"}}) {
    const auto bytes = soft_limit(files, limit.line);
    if (!bytes) continue;
    findings.push_back({.check = "address_space",
                        .subject = limit.subject,
                        .found = format_bytes(*bytes),
                        .verdict = FindingVerdict::costs,
                        .cost =
                            "the plan keeps to it, however much memory is free; CUDA reserves far more addresses than "
                            "it uses memory",
                        .mend = fmt::format("ulimit -{} unlimited", limit.option)});
  }
}

}  // namespace so
