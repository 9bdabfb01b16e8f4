#include "doctor/processors.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/proc_text.h"

namespace so {
namespace {

Cpus list_in(const MachineFiles& files, const std::string& path) {
  const auto text = files.text(path);
  return text ? parse_cpu_list(*text).value_or(Cpus{}) : Cpus{};
}

Cpus status_list(const MachineFiles& files, std::string_view key) {
  const auto status = files.text("/proc/self/status");
  const auto value = status ? value_after(*status, key) : std::nullopt;
  return value ? parse_cpu_list(*value).value_or(Cpus{}) : Cpus{};
}

bool has(const Cpus& cpus, int cpu) { return std::binary_search(cpus.begin(), cpus.end(), cpu); }

std::vector<MemoryNode> read_nodes(const MachineFiles& files) {
  std::vector<MemoryNode> nodes;
  const Cpus allowed = status_list(files, "Mems_allowed_list");
  for (const std::string& name : files.list("/sys/devices/system/node")) {
    const auto number = name.starts_with("node") ? parse_whole(std::string_view(name).substr(4)) : std::nullopt;
    if (!number || *number > 65535) continue;
    const std::string directory = "/sys/devices/system/node/" + name;
    MemoryNode node;
    node.number = static_cast<int>(*number);
    node.cpus = list_in(files, directory + "/cpulist");
    node.allowed = allowed.empty() || has(allowed, node.number);
    // "Node 0 MemTotal:       24684096 kB"
    if (const auto info = files.text(directory + "/meminfo"))
      if (const auto total = value_after(*info, fmt::format("Node {} MemTotal", node.number)))
        if (const auto words = words_of(*total); !words.empty())
          node.bytes = std::min<std::uint64_t>(parse_whole(words[0]).value_or(0), std::uint64_t{1} << 50) * 1024;
    nodes.push_back(std::move(node));
  }
  std::sort(nodes.begin(), nodes.end(), [](const MemoryNode& a, const MemoryNode& b) { return a.number < b.number; });
  return nodes;
}

// The allowed CPUs of `cpus` as cores, the first of each core in order.
NodeCores cores_of(const MachineFiles& files, const Cpus& cpus, const Cpus& allowed, std::set<int>& seen) {
  NodeCores cores;
  for (const int cpu : cpus) {
    if (!has(allowed, cpu) || seen.contains(cpu)) continue;
    const std::string topology = fmt::format("/sys/devices/system/cpu/cpu{}/topology/", cpu);
    Cpus threads = list_in(files, topology + "core_cpus_list");
    if (threads.empty()) threads = list_in(files, topology + "thread_siblings_list");
    Cpus core;
    for (const int thread : threads)
      if (has(allowed, thread) && has(cpus, thread) && !seen.contains(thread)) core.push_back(thread);
    if (!has(core, cpu)) core = {cpu};
    seen.insert(core.begin(), core.end());
    cores.push_back(std::move(core));
  }
  return cores;
}

}  // namespace

std::size_t Processors::core_count() const {
  std::size_t count = 0;
  for (const NodeCores& node : cores) count += node.size();
  return count;
}

Processors read_processors(const MachineFiles& files) {
  Processors machine;
  machine.online = list_in(files, "/sys/devices/system/cpu/online");
  machine.allowed = status_list(files, "Cpus_allowed_list");
  if (machine.allowed.empty()) machine.allowed = machine.online;
  if (machine.online.empty()) machine.online = machine.allowed;
  machine.nodes = read_nodes(files);
  std::set<int> seen;
  for (const MemoryNode& node : machine.nodes)
    if (NodeCores cores = cores_of(files, node.cpus, machine.allowed, seen); !cores.empty())
      machine.cores.push_back(std::move(cores));
  if (NodeCores rest = cores_of(files, machine.allowed, machine.allowed, seen); !rest.empty())
    machine.cores.push_back(std::move(rest));
  return machine;
}

}  // namespace so
