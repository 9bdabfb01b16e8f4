// The memory that this process may use, and has used.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

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

// The least of: what the kernel says is available on the NUMA nodes that this process may take memory from (its cpuset,
// its memory policy), what each cgroup (v1 or v2) above this process leaves, and the address space limit. Page cache
// that can be dropped counts as available.
HostMemory available_host_memory();

std::size_t resident_bytes();       // of this process now
std::size_t peak_resident_bytes();  // the most so far
// Restarts peak_resident_bytes() at what is resident now. Does nothing where the kernel does not allow a reset.
void forget_peak_resident();

// Saturating subtraction: by how much bytes exceed a limit, or what is left of a budget.
inline std::size_t beyond(std::size_t bytes, std::size_t limit) { return bytes > limit ? bytes - limit : 0; }

// A NUMA node that has memory.
struct NumaNode {
  int number = 0;
  bool has_cpus = true;
  std::size_t bytes = 0, available = 0;  // all of it; free or taken by a file cache that can be dropped
};

// The NUMA nodes of a machine, and those that a process may take memory from.
struct NumaNodes {
  std::vector<NumaNode> all;  // by number; none where the kernel knows of none
  std::vector<int> allowed;   // by the process's cpuset
  // Whether there are nodes without CPUs that are a superchip's (64-bit Arm with NVIDIA GPUs): they are the memory of
  // its GPUs, which cudaMalloc hands out too.
  bool superchip = false;

  // The nodes that a process should take memory from; empty if that is all of the allowed.
  std::vector<int> host_nodes() const;
};
NumaNodes numa_nodes(const std::string& root = "");

// On a superchip: from now on this process, and those that it starts, take host memory from host_nodes() alone, since
// what else does not fit falls into the GPU's memory without a word. A policy that the process was started with
// (numactl) stays. Call before the first thread. A kernel that refuses leaves all as it is.
void keep_to_host_nodes();

// For the log: which nodes host memory is taken from, if that is not all; else empty.
std::string host_nodes_line();

// For tests: memory that is available by files below `root` instead of "/", to a process whose policy binds it to
// `nodes`; none is no such policy.
HostMemory available_host_memory(const std::string& root, const std::vector<int>& nodes = {});

}  // namespace so
