#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/proc_text.h"
#include "doctor/cgroups.h"
#include "doctor/host_findings.h"
#include "plan/machine/hardware.h"

namespace so {
namespace {

// AdamW's measured rates by threads, from the profile that has them of a host with many cores.
std::string adamw_by_threads() {
  const auto known = known_hardware();
  const auto h200 = std::find_if(known.begin(), known.end(), [](const KnownHardware& h) { return h.key == "h200"; });
  if (h200 == known.end() || h200->profile.hosts.size() < 2) return "AdamW runs on these alone";
  const SharedHost& fewer = h200->profile.hosts.front();
  const SharedHost& more = h200->profile.hosts.back();
  return fmt::format(
      "AdamW runs on these alone; on a host of 64 cores it reached {:.0f} GB/s with {} threads and {:.0f} with {} "
      "(configs/hardware/h200.json)",
      fewer.rates.host_adamw / 1e9, fewer.host_threads, more.rates.host_adamw / 1e9, more.host_threads);
}

// The CPUs that the process's group may use; nothing where no group says.
std::optional<Cpus> cpuset_of(const MachineFiles& files) {
  for (const Cgroup& group : cgroups_of(files, "cpuset")) {
    const auto text = files.text(group.directory + (group.v2 ? "/cpuset.cpus.effective" : "/cpuset.effective_cpus"));
    if (!text) continue;
    if (auto cpus = parse_cpu_list(*text); cpus && !cpus->empty()) return cpus;
  }
  return std::nullopt;
}

struct Quota {
  double cpus;
  std::string mend;
  std::uint64_t throttled;
};

std::optional<Quota> quota_of(const MachineFiles& files, const Cgroup& group) {
  std::optional<std::uint64_t> quota, period;
  std::string mend;
  if (group.v2) {
    const auto text = files.text(group.directory + "/cpu.max");
    const auto words = words_of(text ? std::string_view(*text) : std::string_view());
    if (words.size() != 2) return std::nullopt;
    quota = parse_whole(words[0]);  // "max" is no number, and no quota
    period = parse_whole(words[1]);
    mend = fmt::format("echo max > {}/cpu.max", group.directory);
  } else {
    quota = files.number(group.directory + "/cpu.cfs_quota_us");  // -1 is none
    period = files.number(group.directory + "/cpu.cfs_period_us");
    mend = fmt::format("echo -1 > {}/cpu.cfs_quota_us", group.directory);
  }
  if (!quota || !period || *period == 0) return std::nullopt;
  const auto stat = files.text(group.directory + "/cpu.stat");
  const auto throttled = stat ? value_after(*stat, "nr_throttled") : std::nullopt;
  return Quota{static_cast<double>(*quota) / static_cast<double>(*period), mend,
               throttled ? parse_whole(*throttled).value_or(0) : 0};
}

}  // namespace

void find_cores(const MachineFiles& files, const Processors& machine, Findings& findings) {
  Finding f{.check = "cores", .subject = "cores"};
  if (machine.allowed.empty()) {
    f.found = "neither /proc/self/status nor /sys/devices/system/cpu says which CPUs there are";
    f.verdict = FindingVerdict::unknown;
  } else {
    f.found =
        fmt::format("{} of {} CPUs ({}), {} core{} on {} NUMA node{}", machine.allowed.size(), machine.online.size(),
                    list_of(machine.allowed), machine.core_count(), machine.core_count() == 1 ? "" : "s",
                    machine.cores.size(), machine.cores.size() == 1 ? "" : "s");
    if (machine.allowed.size() < machine.online.size()) {
      f.verdict = FindingVerdict::costs;
      f.cost = adamw_by_threads();
      const auto set = cpuset_of(files);
      const std::string all = list_of(machine.online);
      f.mend = set && set->size() < machine.online.size()
                   ? fmt::format("start the container with --cpuset-cpus={} (a cpuset group holds it to {})", all,
                                 list_of(*set))
                   : fmt::format("taskset -pc {} $$", all);
    }
  }
  findings.push_back(std::move(f));
}

void find_cores_near_gpus(const Processors& machine, const std::vector<PciGpu>& gpus, Findings& findings) {
  const auto with_cpus = std::count_if(machine.nodes.begin(), machine.nodes.end(),
                                       [](const MemoryNode& node) { return !node.cpus.empty(); });
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const PciGpu& gpu = gpus[i];
    Finding f{.check = "cores_near_gpu", .subject = fmt::format("cores near GPU {}", i)};
    Cpus near;
    std::set_intersection(gpu.near.begin(), gpu.near.end(), machine.allowed.begin(), machine.allowed.end(),
                          std::back_inserter(near));
    if (with_cpus <= 1) {
      f.found = "all: one NUMA node has all CPUs";
    } else if (gpu.near.empty()) {
      f.found = fmt::format("the kernel does not say which CPUs are near {}", gpu.bus);
      f.verdict = FindingVerdict::unknown;
    } else if (near.empty()) {
      f.found = fmt::format("none: this process may run on {}, and {} are near {}", list_of(machine.allowed),
                            list_of(gpu.near), gpu.bus);
      f.verdict = FindingVerdict::costs;
      f.cost = "gradients and weights cross from socket to socket; nobody has measured how much slower";
      // Ranks on several GPUs choose among all CPUs by themselves (bind_ranks()).
      f.mend = fmt::format("taskset -pc {} $$", list_of(gpus.size() > 1 ? machine.online : gpu.near));
    } else {
      f.found = fmt::format("{} of the {} that it may use ({}), near {}", near.size(), machine.allowed.size(),
                            list_of(near), gpu.bus);
    }
    findings.push_back(std::move(f));
  }
}

void find_cpu_quota(const MachineFiles& files, const Processors& machine, Findings& findings) {
  Finding f{.check = "cpu_quota", .subject = "CPU quota of the cgroup", .found = "none"};
  std::optional<Quota> least;
  for (const Cgroup& group : cgroups_of(files, "cpu"))
    if (const auto quota = quota_of(files, group); quota && (!least || quota->cpus < least->cpus)) least = quota;
  if (least) {
    const auto cpus = static_cast<double>(machine.allowed.size());
    f.found = fmt::format("the time of {:.3g} CPUs, for {} that it may run on{}", least->cpus, machine.allowed.size(),
                          least->throttled > 0 ? fmt::format("; stopped {} times so far", least->throttled) : "");
    if (least->cpus < cpus) {
      f.verdict = FindingVerdict::costs;
      f.cost = fmt::format(
          "at most {:.0f}% of the CPUs' time; when it is used up all threads stop, also the one that feeds the GPU",
          100 * least->cpus / cpus);
      f.mend = least->mend + fmt::format(" (or superoffload train --cpu_threads {})",
                                         std::max(1, static_cast<int>(std::min(least->cpus, cpus))));
    }
  }
  findings.push_back(std::move(f));
}

void find_governor(const MachineFiles& files, const Processors& machine, Findings& findings) {
  Finding f{.check = "governor", .subject = "cpufreq governor"};
  std::map<std::string, Cpus> by_governor;
  double slowest = 1;
  bool saves = false;
  for (const int cpu : machine.allowed) {
    const std::string directory = fmt::format("/sys/devices/system/cpu/cpu{}/cpufreq/", cpu);
    const auto governor = files.text(directory + "scaling_governor");
    if (!governor) continue;
    const std::string preference = files.text(directory + "energy_performance_preference").value_or("");
    by_governor[*governor + (preference.empty() ? "" : ", " + preference)].push_back(cpu);
    // The drivers that choose clocks in hardware call their only other governor powersave: there the preference counts.
    const std::string driver = files.text(directory + "scaling_driver").value_or("");
    const bool in_hardware = driver == "intel_pstate" || driver == "amd-pstate-epp";
    saves |= *governor != "performance" &&
             !(in_hardware && (preference == "performance" || preference == "balance_performance"));
    const auto most = files.number(directory + "scaling_max_freq"), can = files.number(directory + "cpuinfo_max_freq");
    if (most && can && *can > 0) slowest = std::min(slowest, static_cast<double>(*most) / static_cast<double>(*can));
  }
  if (by_governor.empty()) {
    f.found = "the kernel shows none (as in a virtual machine): the host or the firmware sets the clocks";
    f.verdict = FindingVerdict::unknown;
  } else {
    for (const auto& [governor, cpus] : by_governor)
      f.found += fmt::format("{}{} (CPUs {})", f.found.empty() ? "" : "; ", governor, list_of(cpus));
    if (saves || slowest < 0.99) {
      f.verdict = FindingVerdict::costs;
      f.cost = slowest < 0.99
                   ? fmt::format("clocks are held to {:.0f}% of the greatest", 100 * slowest)
                   : std::string("clocks rise only after load has come; nobody has measured how much that takes here");
      f.mend = slowest < 0.99 ? "cpupower frequency-set -g performance -u $(cat /sys/devices/system/cpu/cpu0/cpufreq/"
                                "cpuinfo_max_freq)"
                              : "cpupower frequency-set -g performance";
    }
  }
  findings.push_back(std::move(f));
}

}  // namespace so
