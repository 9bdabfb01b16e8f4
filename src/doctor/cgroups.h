// The control groups of this process.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "doctor/machine_files.h"

namespace so {

struct Cgroup {
  std::string directory;  // "/sys/fs/cgroup/system.slice"
  bool v2 = true;
};

// The group of this process that a controller ("cpu", "cpuset", "memory") counts in, and all groups above it, as far as
// they can be seen: inside a container often the mount's root alone.
std::vector<Cgroup> cgroups_of(const MachineFiles& files, std::string_view controller);

}  // namespace so
