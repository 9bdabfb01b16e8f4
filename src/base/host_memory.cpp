#include "base/host_memory.h"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>

#include "base/proc_text.h"
#include "base/quantities.h"

namespace so {
namespace {

constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

// The number after `key` in a file of "key: value kB" or "key value" lines, in the file's own unit.
std::optional<std::size_t> field(const std::string& path, std::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const auto digits = line.find_first_of("0123456789", key.size());
    if (digits == std::string::npos) return std::nullopt;
    std::size_t value = 0;
    std::from_chars(line.data() + digits, line.data() + line.size(), value);
    return value;
  }
  return std::nullopt;
}

// The single number in a file; "max" and absence are no limit.
std::optional<std::size_t> number(const std::string& path) {
  std::ifstream in(path);
  std::string text;
  if (!(in >> text)) return std::nullopt;
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

void lower(HostMemory& memory, std::size_t available, std::string limited_by) {
  if (available < memory.available) memory = {available, std::move(limited_by)};
}

// A cgroup leaves its limit less what it holds. The page cache does not count as held: the kernel drops it before it
// refuses memory, and the part it calls active too, where a file that was read twice is. `prefix` is that of the fields
// of memory.stat that count the groups below.
void consider(HostMemory& memory, const std::string& directory, const char* limit_file, const char* usage_file,
              const std::string& prefix) {
  const auto limit = number(directory + "/" + limit_file), usage = number(directory + "/" + usage_file);
  if (!limit || !usage || *limit > (unlimited >> 2)) return;  // v1 writes a huge number for "none"
  std::size_t cache = 0;
  for (const char* list : {"active_file ", "inactive_file "})
    cache += field(directory + "/memory.stat", prefix + list).value_or(0);
  cache = std::min(*usage, cache);
  const std::size_t held = *usage - cache;
  lower(memory, *limit > held ? *limit - held : 0, "cgroup " + directory);
}

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool contains(const std::vector<int>& nodes, int node) {
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

// Whether a PCI device is an NVIDIA GPU, by its vendor and the class of display controllers.
bool is_nvidia_gpu(const std::filesystem::path& device) {
  return trimmed(text_of(device / "vendor")) == "0x10de" && text_of(device / "class").starts_with("0x03");
}

bool has_nvidia_gpu(const std::string& root) {
  std::error_code none;
  for (const auto& device : std::filesystem::directory_iterator(root + "/sys/bus/pci/devices", none))
    if (is_nvidia_gpu(device.path())) return true;
  return false;
}

// As many nodes as a kernel can have.
constexpr std::size_t most_nodes = 1024;
constexpr std::size_t bits = 8 * sizeof(unsigned long);
using NodeMask = std::array<unsigned long, most_nodes / bits>;

struct MemoryPolicy {
  bool is_default = true;
  std::vector<int> bound;  // the nodes that it binds to; empty for every other policy
};

MemoryPolicy memory_policy() {
  NodeMask mask{};
  int mode = MPOL_DEFAULT;
  MemoryPolicy policy;
  if (syscall(SYS_get_mempolicy, &mode, mask.data(), most_nodes, nullptr, 0UL) != 0) return policy;
  mode &= ~MPOL_MODE_FLAGS;
  policy.is_default = mode == MPOL_DEFAULT;
  if (mode != MPOL_BIND) return policy;
  for (std::size_t node = 0; node < most_nodes; ++node)
    if ((mask[node / bits] >> (node % bits) & 1) != 0) policy.bound.push_back(static_cast<int>(node));
  return policy;
}

// The nodes that a process gets memory from, and the others.
struct NodeUse {
  std::vector<int> used, others;
  std::size_t available_on_others = 0;
  std::string name_of_used() const {
    return fmt::format("node{} {}", used.size() > 1 ? "s" : "", fmt::join(used, ","));
  }
};

// `bound`: as in MemoryPolicy. No others where no node is used: then nothing is known of them.
NodeUse node_use(const NumaNodes& nodes, const std::vector<int>& bound) {
  NodeUse use;
  for (const NumaNode& node : nodes.all) {
    if (contains(nodes.allowed, node.number) && (bound.empty() || contains(bound, node.number))) {
      use.used.push_back(node.number);
    } else {
      use.others.push_back(node.number);
      use.available_on_others += node.available;
    }
  }
  return use.used.empty() ? NodeUse{} : use;
}

// Takes off what is available on nodes that the process gets no memory from.
void leave_out_other_nodes(HostMemory& memory, const NumaNodes& nodes, const std::vector<int>& bound) {
  const NodeUse use = node_use(nodes, bound);
  if (!use.others.empty())
    lower(memory, beyond(memory.available, use.available_on_others), "free memory of NUMA " + use.name_of_used());
}

}  // namespace

std::vector<int> NumaNodes::host_nodes() const {
  std::vector<int> nodes;
  bool others = false;
  for (const NumaNode& node : all) {
    if (!contains(allowed, node.number)) continue;
    if (node.has_cpus)
      nodes.push_back(node.number);
    else
      others = true;
  }
  return superchip && others ? nodes : std::vector<int>{};
}

NumaNodes numa_nodes(const std::string& root) {
  NumaNodes nodes;
  const std::string status = text_of(root + "/proc/self/status");
  const auto allowed = value_after(status, "Mems_allowed_list");
  const auto list = allowed ? parse_cpu_list(*allowed) : std::nullopt;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(root + "/sys/devices/system/node", none)) {
    const std::string name = entry.path().filename().string();
    const auto number = name.starts_with("node") ? parse_whole(std::string_view(name).substr(4)) : std::nullopt;
    if (!number || *number >= most_nodes) continue;
    const std::string info = entry.path().string() + "/meminfo";
    const auto of = [&](const char* what) {
      return field(info, fmt::format("Node {} {}:", *number, what)).value_or(0) * 1024;
    };
    NumaNode node;
    node.number = static_cast<int>(*number);
    node.has_cpus = !trimmed(text_of(entry.path().string() + "/cpulist")).empty();
    node.bytes = of("MemTotal");
    node.available = of("MemFree") + of("Active(file)") + of("Inactive(file)");
    if (node.bytes == 0) continue;
    nodes.all.push_back(node);
    if (!list || contains(*list, node.number)) nodes.allowed.push_back(node.number);
  }
  std::sort(nodes.all.begin(), nodes.all.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  std::sort(nodes.allowed.begin(), nodes.allowed.end());
  // Every start of the program comes here, so the processors' long text is only read where it matters.
  nodes.superchip = std::any_of(nodes.all.begin(), nodes.all.end(), [](const NumaNode& n) { return !n.has_cpus; }) &&
                    text_of(root + "/proc/cpuinfo").find("CPU implementer") != std::string::npos &&
                    has_nvidia_gpu(root);
  return nodes;
}

void keep_to_host_nodes() {
  const std::vector<int> nodes = numa_nodes().host_nodes();
  if (nodes.empty() || !memory_policy().is_default) return;
  NodeMask mask{};
  for (const int node : nodes)
    mask[static_cast<std::size_t>(node) / bits] |= 1UL << (static_cast<std::size_t>(node) % bits);
  syscall(SYS_set_mempolicy, MPOL_BIND, mask.data(), most_nodes + 1);  // the kernel counts one bit less than it is told
}

std::string host_nodes_line() {
  const NumaNodes nodes = numa_nodes();
  const NodeUse use = node_use(nodes, memory_policy().bound);
  if (use.others.empty()) return {};
  return fmt::format("memory: host memory is taken from NUMA {} and not from {}{}", use.name_of_used(),
                     fmt::join(use.others, ","),
                     nodes.superchip ? ", the GPUs' own memory (numactl --membind chooses others)" : "");
}

HostMemory available_host_memory(const std::string& root, const std::vector<int>& nodes) {
  HostMemory memory{unlimited, "nothing known"};
  if (const auto kb = field(root + "/proc/meminfo", "MemAvailable:")) lower(memory, *kb * 1024, "free memory");
  leave_out_other_nodes(memory, numa_nodes(root), nodes);

  // /proc/self/cgroup lines: "hierarchy:controllers:path". Limits hold for a group and for all that contain it.
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
    const std::string mount = root + (v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    // Inside a container the path is often that of the host: then only the mount's own root is there to read.
    std::filesystem::path path = line.substr(second + 1);
    for (;;) {
      const std::string directory = mount + (path == "/" ? "" : path.string());
      if (v2)
        consider(memory, directory, "memory.max", "memory.current", "");
      else
        consider(memory, directory, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_");
      if (path == "/" || path.empty()) break;
      path = path.parent_path();
    }
  }
  return memory;
}

HostMemory available_host_memory() {
  HostMemory memory = available_host_memory("", memory_policy().bound);
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const std::size_t taken = field("/proc/self/status", "VmSize:").value_or(0) * 1024;
    lower(memory, limit.rlim_cur > taken ? limit.rlim_cur - taken : 0, "RLIMIT_AS (ulimit -v)");
  }
  return memory;
}

std::size_t resident_bytes() { return field("/proc/self/status", "VmRSS:").value_or(0) * 1024; }
std::size_t peak_resident_bytes() { return field("/proc/self/status", "VmHWM:").value_or(0) * 1024; }

void forget_peak_resident() { std::ofstream("/proc/self/clear_refs") << "5"; }  // proc(5)

}  // namespace so
