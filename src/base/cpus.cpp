#include "base/cpus.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace so {

namespace {

// Returns the CPUs that the calling thread may use; none if the system does not say.
cpu_set_t own_cpus() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) CPU_ZERO(&mask);
  return mask;
}

}  // namespace

std::vector<std::vector<int>> usable_cores() {
  const cpu_set_t mask = own_cpus();
  if (CPU_COUNT(&mask) == 0) return {{0}};
  std::vector<std::vector<int>> cores;
  hwloc_topology_t topology;
  hwloc_topology_init(&topology);
  hwloc_topology_load(topology);
  for (hwloc_obj_t core = nullptr; (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr;) {
    std::vector<int> cpus;
    for (int cpu = hwloc_bitmap_first(core->cpuset); cpu >= 0; cpu = hwloc_bitmap_next(core->cpuset, cpu))
      if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
    if (!cpus.empty()) cores.push_back(std::move(cpus));
  }
  hwloc_topology_destroy(topology);
  if (cores.empty()) {  // a machine whose cores hwloc cannot see
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &mask)) cores.push_back({cpu});
  }
  return cores;
}

namespace {

// One hardware thread per core, then their siblings.
std::vector<int> by_core(std::span<const std::vector<int>> cores) {
  std::vector<int> first, siblings;
  for (const std::vector<int>& core : cores) {
    first.push_back(core.front());
    siblings.insert(siblings.end(), core.begin() + 1, core.end());
  }
  first.insert(first.end(), siblings.begin(), siblings.end());
  return first;
}

constexpr std::size_t cores_to_spare_one = 4;  // with fewer, a core is too large a part of the whole

}  // namespace

std::vector<int> usable_cpus() { return by_core(usable_cores()); }

std::vector<int> host_worker_cpus(std::span<const std::vector<int>> cores, int threads) {
  SO_CHECK(!cores.empty() && threads >= 0, "{} threads on {} cores", threads, cores.size());
  if (cores.size() < cores_to_spare_one) {
    std::vector<int> cpus = by_core(cores);
    if (threads > 0) cpus.resize(std::min(cpus.size(), static_cast<std::size_t>(threads)));
    return cpus;
  }
  std::vector<int> cpus = by_core(cores.subspan(1));
  if (threads == 0) return cpus;
  cpus.insert(cpus.end(), cores[0].begin(), cores[0].end());
  cpus.resize(std::min(cpus.size(), static_cast<std::size_t>(threads)));
  return cpus;
}

std::size_t count_usable_cpus() {
  const cpu_set_t mask = own_cpus();
  return static_cast<std::size_t>(std::max(1, CPU_COUNT(&mask)));
}

}  // namespace so
