#include "plan/machine/host_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>

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

}  // namespace

HostMemory available_host_memory(const std::string& root) {
  HostMemory memory{unlimited, "nothing known"};
  if (const auto kb = field(root + "/proc/meminfo", "MemAvailable:")) lower(memory, *kb * 1024, "free memory");

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
  HostMemory memory = available_host_memory("");
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
