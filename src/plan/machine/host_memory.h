// The memory that this process may use, and has used.
#pragma once

#include <cstddef>
#include <string>

namespace so {

struct HostMemory {
  std::size_t available = 0;  // bytes that can still be taken
  std::string limited_by;     // "free memory", "cgroup /path", "RLIMIT_AS"
};

// Bytes that a plan may have of a device's own memory, and what limits them.
struct DeviceMemory {
  std::string name;  // of the device
  std::size_t available = 0;
  std::string limited_by = "free memory";
};

// The least of: what the kernel says is available, what each cgroup (v1 or v2) above this process leaves, and the
// address space limit. Page cache that can be dropped counts as available.
HostMemory available_host_memory();

std::size_t resident_bytes();       // of this process now
std::size_t peak_resident_bytes();  // the most so far
// From now on that counts from what is resident now. Nothing where the kernel does not let a process say so.
void forget_peak_resident();

// Saturating subtraction: by how much bytes exceed a limit, or what is left of a budget.
inline std::size_t beyond(std::size_t bytes, std::size_t limit) { return bytes > limit ? bytes - limit : 0; }

// For tests: the same from files below `root` instead of "/".
HostMemory available_host_memory(const std::string& root);

}  // namespace so
