// The CPUs and the memory nodes of a machine, as sysfs describes them. hwloc says the same of the machine that it runs
// on; here they come through MachineFiles, so that a test's machine is read by the same code.
#pragma once

#include <cstdint>
#include <vector>

#include "doctor/machine_files.h"
#include "ranks/binding.h"

namespace so {

struct MemoryNode {
  int number = 0;
  Cpus cpus;                // none: memory of another kind, such as a GPU's that the host can reach
  std::uint64_t bytes = 0;  // 0: not known
  bool allowed = true;      // for this process's memory
};

struct Processors {
  Cpus online;
  Cpus allowed;                   // that this process may run on
  std::vector<MemoryNode> nodes;  // by number; none where the kernel knows of none
  std::vector<NodeCores> cores;   // of the allowed CPUs, by node, as cores_by_node() gives them

  std::size_t core_count() const;
};

Processors read_processors(const MachineFiles& files);

}  // namespace so
