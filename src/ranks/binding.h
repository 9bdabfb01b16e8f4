// The cores of a host, divided between the ranks that run there.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ranks/communicator.h"

struct hwloc_topology;

namespace so {

using Cpus = std::vector<int>;  // as the operating system numbers them, ascending

// The cores of a NUMA node, each as its hardware threads.
using NodeCores = std::vector<Cpus>;

// The cores of a machine that have CPUs among the `allowed`, by NUMA node, with these CPUs. Where hwloc knows no cores,
// each CPU is one.
std::vector<NodeCores> cores_by_node(hwloc_topology* topology, const Cpus& allowed);

// The CPUs of each of `ranks` ranks: whole cores, as many for each, and no core for two. A rank's cores are of one NUMA
// node where one has room for them, and of as few as can be where not: whole nodes first. A rank whose GPU lies near
// some CPUs (`near`, by rank; may be empty, as may its elements) takes nodes with these before others. Cores that do
// not divide are left over. Empty if there are more ranks than cores.
std::vector<Cpus> share_cores(const std::vector<NodeCores>& nodes, int ranks, std::span<const Cpus> near = {});

// "0-3,8"
std::string list_of(const Cpus& cpus);

// bind_ranks() returns this.
struct RankCores {
  enum class By { program, launcher, nobody };
  By by = By::nobody;
  int cpus = 1;      // that this rank may use, which it shares with no other unless nobody bound them
  std::string line;  // for the log; empty for one rank on the CPUs that it was started with
  std::string warning;
};

struct BindOptions {
  bool bind = true;      // --bind_cores_to_rank
  std::string cpu_list;  // --cpu_list; empty: the CPUs that the ranks were started on
  Cpus near;             // CPUs near this rank's GPU, of which its share comes first; may be empty
};

// Binds all threads of this process, and those that it starts, to its rank's share of the CPUs that the ranks of its
// host may use: those of `cpu_list`, or else those that they were started on. Without a list ranks that their launcher
// has given CPUs of their own keep them. With `bind` false, or fewer cores than ranks, all ranks stay on all of these
// CPUs. A collective; without a list it does nothing for one rank. Throws Error for a text that is no list, and for
// CPUs that the host does not have or that a cgroup keeps from this process.
RankCores bind_ranks(Communicator& ranks, const BindOptions& options);

// The CPUs of a list as the user writes it, "0-3,8". Throws Error for a text that is none, or if some of them are not
// among the `usable`.
Cpus listed_cpus(const std::string& text, const Cpus& usable);

}  // namespace so
