#include "doctor/partition/partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/proc_text.h"
#include "doctor/processors.h"

namespace so {
namespace {

// Whether a CPU that feeds a GPU lies behind a cache of the third level, by the cache's number; empty where the kernel
// does not number them.
std::map<int, bool> fed_caches(const MachineFiles& files, const Cpus& all, const Cpus& feeding) {
  std::map<int, bool> fed;
  for (const int cpu : all) {
    const std::string caches = fmt::format("/sys/devices/system/cpu/cpu{}/cache/", cpu);
    for (const std::string& index : files.list(caches)) {
      if (files.number(caches + index + "/level") != 3u) continue;
      const auto id = files.number(caches + index + "/id");
      if (!id || *id > 0x7fffffff) continue;
      fed[static_cast<int>(*id)] |= std::binary_search(feeding.begin(), feeding.end(), cpu);
    }
  }
  return fed;
}

// A domain that no feeding core lies behind is left whole. What is not numbered among the caches counts as fed.
bool is_fed(const std::map<int, bool>& fed, int domain) {
  const auto found = fed.find(domain);
  return found == fed.end() || found->second;
}

// AdamW streams, and uses no line of its state twice in a step: a third of the ways does for it, as published for Grace
// (4 of 12). The feeding cores have the others. Nothing if there are too few ways.
struct Ways {
  std::uint64_t feeding, adamw;
};
std::optional<Ways> split_ways(const CacheResource& cache) {
  const bool from_bit_0 = (cache.mask & (cache.mask + 1)) == 0;  // a mask of another form cannot be cut in two here
  const auto ways = static_cast<unsigned>(std::popcount(cache.mask));
  const unsigned adamw = std::max(cache.least_ways, ways / 3);
  if (!from_bit_0 || adamw >= 64 || ways < adamw + cache.least_ways) return std::nullopt;
  const std::uint64_t low = (std::uint64_t{1} << adamw) - 1;
  return Ways{cache.mask & ~low, low};
}

std::string hex(std::uint64_t mask) { return fmt::format("{:x}", mask); }

void divide_cache(const CacheResource& cache, const std::map<int, bool>& fed, Partition& partition) {
  const auto ways = split_ways(cache);
  if (!ways) {
    partition.notes.push_back(fmt::format("{} has too few ways to be divided (mask {}, at least {} for a group)",
                                          cache.name, hex(cache.mask), cache.least_ways));
    return;
  }
  SchemataLine feeding{cache.name, {}}, adamw{cache.name, {}};
  for (const int domain : cache.domains) {
    const bool divided = is_fed(fed, domain);
    feeding.shares.push_back({domain, hex(divided ? ways->feeding : cache.mask)});
    adamw.shares.push_back({domain, hex(divided ? ways->adamw : cache.mask)});
  }
  partition.groups[0].schemata.push_back(schemata_text(feeding));
  partition.groups[1].schemata.push_back(schemata_text(adamw));
}

void divide_bandwidth(const BandwidthResource& bandwidth, const std::map<int, bool>& fed, std::optional<int> percent,
                      Partition& partition) {
  if (!percent && !bandwidth.percent) {
    partition.notes.push_back(fmt::format("{} stays as it is for both: it is not in percent here ({})", bandwidth.name,
                                          schemata_text({bandwidth.name, bandwidth.whole})));
    return;
  }
  if (!percent) {
    partition.notes.push_back(fmt::format(
        "{} stays whole for both: AdamW is bound by memory bandwidth. --adamw_bandwidth PERCENT limits it; for Grace 20 "
        "was published. Neither has been measured with this program",
        bandwidth.name));
    return;
  }
  if (!bandwidth.percent)
    fail(
        "--adamw_bandwidth: {} is not in percent here ({}): leave the option out, and write schemata by hand if need be",
        bandwidth.name, schemata_text({bandwidth.name, bandwidth.whole}));
  const unsigned asked = static_cast<unsigned>(*percent), step = bandwidth.granularity;
  const unsigned value = std::min(100u, std::max(bandwidth.least, (asked + step - 1) / step * step));
  if (value != asked)
    partition.notes.push_back(fmt::format("{} takes steps of {}% from {}%: {}% becomes {}%", bandwidth.name, step,
                                          bandwidth.least, asked, value));
  SchemataLine feeding{bandwidth.name, bandwidth.whole}, adamw{bandwidth.name, bandwidth.whole};
  for (SchemataLine::Share& share : adamw.shares)
    if (is_fed(fed, share.domain)) share.value = std::to_string(value);
  partition.groups[0].schemata.push_back(schemata_text(feeding));
  partition.groups[1].schemata.push_back(schemata_text(adamw));
}

void find_obstacles(const Resctrl& resctrl, Partition& partition) {
  Cpus own;
  for (const PartitionGroup& group : partition.groups) own.insert(own.end(), group.cpus.begin(), group.cpus.end());
  std::sort(own.begin(), own.end());
  for (const ResctrlGroup& group : resctrl.groups) {
    const std::string path = fmt::format("{}/{}", resctrl_root, group.name);
    if (std::any_of(partition.groups.begin(), partition.groups.end(),
                    [&](const PartitionGroup& planned) { return planned.name == group.name; })) {
      partition.obstacles.push_back(fmt::format(
          "{} is there already: superoffload doctor --partition --undo takes it back, or rmdir {}", path, path));
      continue;
    }
    Cpus shared;
    std::set_intersection(group.cpus.begin(), group.cpus.end(), own.begin(), own.end(), std::back_inserter(shared));
    if (!shared.empty())
      partition.obstacles.push_back(fmt::format("CPUs {} are in {}, another program's group: rmdir {} gives them back",
                                                list_of(shared), path, path));
  }
  const std::size_t needed = 1 + resctrl.groups.size() + partition.groups.size();
  if (partition.obstacles.empty() && resctrl.most_groups && needed > *resctrl.most_groups)
    partition.obstacles.push_back(
        fmt::format("the hardware has {} groups, and with these there would be {}", *resctrl.most_groups, needed));
  const auto& groups = partition.groups;
  if (groups[0].schemata == groups[1].schemata)
    partition.obstacles.push_back(
        "both groups would have the same: nothing to be divided without --adamw_bandwidth PERCENT");
}

std::vector<std::string> commands_of(const Partition& partition) {
  std::vector<std::string> commands;
  for (const PartitionGroup& group : partition.groups) {
    const std::string path = fmt::format("{}/{}", resctrl_root, group.name);
    commands.push_back("mkdir " + path);
    for (const std::string& line : group.schemata)
      commands.push_back(fmt::format("echo '{}' > {}/schemata", line, path));
    commands.push_back(fmt::format("echo {} > {}/cpus_list", list_of(group.cpus), path));
  }
  return commands;
}

}  // namespace

Partition plan_partition(const MachineFiles& files, const PartitionRequest& request) {
  const Resctrl resctrl = read_resctrl(files);
  if (!resctrl.supported)
    fail(
        "this kernel has no resctrl here: neither Intel RDT, nor AMD's, nor Arm MPAM (dmesg | grep -iE 'resctrl|mpam' says "
        "more; in a virtual machine the host has it)");
  if (!resctrl.mounted) fail("resctrl is not mounted: run  mount -t resctrl resctrl {}  and try again", resctrl_root);
  if (resctrl.caches.empty() && resctrl.bandwidths.empty())
    fail("{}/schemata has neither L3 nor MB: there is nothing to be divided", resctrl_root);
  const Processors machine = read_processors(files);
  const std::vector<Cpus> shares = share_cores(machine.cores, request.gpus);
  if (shares.empty()) fail("--gpus {}: there are {} cores", request.gpus, machine.core_count());

  Partition partition{
      resctrl.description(), {{std::string(feeding_group), {}, {}}, {std::string(adamw_group), {}, {}}}, {}, {}};
  Cpus all;
  for (const Cpus& share : shares) {
    int feeding = 0;
    for (const NodeCores& node : machine.cores)
      for (const Cpus& core : node) {
        if (!std::binary_search(share.begin(), share.end(), core.front())) continue;
        Cpus& cpus = partition.groups[feeding < request.feeding_cores ? 0 : 1].cpus;
        cpus.insert(cpus.end(), core.begin(), core.end());
        all.insert(all.end(), core.begin(), core.end());
        ++feeding;
      }
  }
  for (PartitionGroup& group : partition.groups) std::sort(group.cpus.begin(), group.cpus.end());
  // The program leaves no core to feeding alone where there are fewer than four (host_worker_cpus()).
  if (machine.core_count() / static_cast<std::size_t>(request.gpus) < 4 || partition.groups[1].cpus.empty())
    fail("{} cores for {} GPU{}: of fewer than 4 each, or of no more than --feeding_cores, none can be set apart",
         machine.core_count(), request.gpus, request.gpus == 1 ? "" : "s");

  const auto fed = fed_caches(files, all, partition.groups[0].cpus);
  for (const CacheResource& cache : resctrl.caches) divide_cache(cache, fed, partition);
  if (resctrl.bandwidths.empty() && request.adamw_bandwidth)
    fail("--adamw_bandwidth: this machine divides no memory bandwidth (no MB in {}/schemata)", resctrl_root);
  for (const BandwidthResource& bandwidth : resctrl.bandwidths)
    divide_bandwidth(bandwidth, fed, request.adamw_bandwidth, partition);
  partition.notes.push_back("nothing is written to tasks: a process belongs to the group of the CPU that it runs on");
  find_obstacles(resctrl, partition);
  return partition;
}

std::string partition_text(const Partition& partition) {
  std::size_t widest = 0;
  for (const PartitionGroup& group : partition.groups) widest = std::max(widest, list_of(group.cpus).size());
  std::string text = fmt::format("resctrl divides {}\n\n", partition.resources);
  for (const PartitionGroup& group : partition.groups)
    text += fmt::format("{:<18}  CPUs {:<{}}  {}\n", group.name, list_of(group.cpus), widest,
                        fmt::join(group.schemata, "  "));
  text += "\nAs commands, which --apply runs and --undo takes back:\n";
  for (const std::string& command : commands_of(partition)) text += fmt::format("  {}\n", command);
  text += "\n";
  for (const std::string& note : partition.notes) text += fmt::format("note: {}\n", note);
  for (const std::string& obstacle : partition.obstacles) text += fmt::format("in the way: {}\n", obstacle);
  return text;
}

std::string partition_json(const Partition& partition) {
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (const PartitionGroup& group : partition.groups)
    groups.push_back({{"name", group.name}, {"cpus", list_of(group.cpus)}, {"schemata", group.schemata}});
  const nlohmann::ordered_json result{{"resources", partition.resources},
                                      {"groups", groups},
                                      {"commands", commands_of(partition)},
                                      {"notes", partition.notes},
                                      {"obstacles", partition.obstacles}};
  return result.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void find_partition(const MachineFiles& files, Findings& findings) {
  const Resctrl resctrl = read_resctrl(files);
  Finding f{.check = "memory_partitions", .subject = "memory partitions"};
  const auto has = [&](std::string_view name) {
    return std::any_of(resctrl.groups.begin(), resctrl.groups.end(),
                       [&](const ResctrlGroup& group) { return group.name == name; });
  };
  if (!resctrl.supported) {
    f.found = "the kernel has no resctrl (Intel RDT, Arm MPAM)";
    f.verdict = FindingVerdict::unknown;
  } else if (!resctrl.mounted) {
    f.found = "resctrl is not mounted";
    f.verdict = FindingVerdict::unknown;
    f.mend = fmt::format("mount -t resctrl resctrl {}", resctrl_root);
  } else if (has(feeding_group) && has(adamw_group)) {
    f.found = fmt::format("set up ({})", resctrl.description());
  } else {
    f.found = fmt::format("not set up ({})", resctrl.description());
    f.verdict = FindingVerdict::unknown;
    f.mend = "superoffload doctor --partition, then with --apply";
  }
  if (f.verdict == FindingVerdict::unknown && resctrl.supported)
    f.cost = "published set-ups for Grace have them; what they give has not been measured with this program";
  findings.push_back(std::move(f));
}

}  // namespace so
