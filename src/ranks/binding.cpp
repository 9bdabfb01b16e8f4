#include "ranks/binding.h"

#include <fmt/format.h>
#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <sstream>
#include <system_error>

#include "base/error.h"
#include "base/proc_text.h"

namespace so {
namespace {

struct TopologyEnd {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, TopologyEnd>;

Topology load_topology() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) throw std::system_error(errno, std::generic_category(), "hwloc");
  Topology loaded(topology);
  if (hwloc_topology_load(topology) != 0) throw std::system_error(errno, std::generic_category(), "hwloc");
  return loaded;
}

Cpus common_cpus(hwloc_const_bitmap_t set, const Cpus& allowed) {
  Cpus cpus;
  for (const int cpu : allowed)
    if (hwloc_bitmap_isset(set, static_cast<unsigned>(cpu)) != 0) cpus.push_back(cpu);
  return cpus;
}

// Those that this process may run on.
Cpus affinity() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0)
    throw std::system_error(errno, std::generic_category(), "sched_getaffinity");
  Cpus cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
  return cpus;
}

Cpus all_cpus() {
  Cpus cpus(CPU_SETSIZE);
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

Cpus parse_cpus(const std::string& text) {
  std::istringstream in(text);
  Cpus cpus;
  for (int cpu = 0; in >> cpu;) cpus.push_back(cpu);
  return cpus;
}

// The cores of a node that no rank has yet, of which the first are given away first.
struct FreeCores {
  const NodeCores* cores;
  std::size_t taken = 0;
  std::size_t left() const { return cores->size() - taken; }
};

bool is_near(const FreeCores& node, const Cpus& near) {
  return std::any_of(node.cores->begin(), node.cores->end(),
                     [&](const Cpus& core) { return std::binary_search(near.begin(), near.end(), core.front()); });
}

// The node from which a rank takes its next cores: the fullest one that has all it needs, else the one with the most.
// Those near its GPU come first. There is one with a free core.
FreeCores& next_node(std::vector<FreeCores>& nodes, std::size_t needed, const Cpus& near) {
  const auto better = [&](const FreeCores& a, const FreeCores& b) {
    if ((a.left() > 0) != (b.left() > 0)) return a.left() > 0;
    if (const bool near_a = is_near(a, near); near_a != is_near(b, near)) return near_a;
    if ((a.left() >= needed) != (b.left() >= needed)) return a.left() >= needed;
    return a.left() >= needed ? a.left() < b.left() : a.left() > b.left();
  };
  return *std::min_element(nodes.begin(), nodes.end(), better);
}

// The CPUs that each rank of this host names, by local rank, in the ranks' order.
std::vector<Cpus> of_host(Communicator& ranks, const Cpus& own) {
  const std::string text = fmt::format("{} {}", ranks.place().host, fmt::join(own, " "));
  std::vector<Cpus> all;
  for (const std::string& one : ranks.all_gather(text)) {
    Cpus cpus = parse_cpus(one);
    if (cpus.front() != ranks.place().host) continue;
    cpus.erase(cpus.begin());
    all.push_back(std::move(cpus));
  }
  return all;
}

bool disjoint(const std::vector<Cpus>& sets) {
  Cpus all;
  for (const Cpus& set : sets) all.insert(all.end(), set.begin(), set.end());
  std::sort(all.begin(), all.end());
  return std::adjacent_find(all.begin(), all.end()) == all.end();
}

void bind_process(hwloc_topology* topology, const Cpus& cpus) {
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  for (const int cpu : cpus) hwloc_bitmap_set(set, static_cast<unsigned>(cpu));
  const int failed = hwloc_set_cpubind(topology, set, HWLOC_CPUBIND_PROCESS);
  const int error = errno;
  hwloc_bitmap_free(set);
  if (failed != 0)
    fail("this system does not let a rank be bound to CPUs {} ({}): use --bind_cores_to_rank false", list_of(cpus),
         std::strerror(error));
}

}  // namespace

std::vector<NodeCores> cores_by_node(hwloc_topology* topology, const Cpus& allowed) {
  const hwloc_obj_type_t unit = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  std::vector<NodeCores> nodes;
  Cpus seen;  // several nodes may have the same CPUs, as where there are two kinds of memory
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    NodeCores cores;
    for (hwloc_obj_t core = nullptr; (core = hwloc_get_next_obj_by_type(topology, unit, core)) != nullptr;) {
      if (hwloc_bitmap_isincluded(core->cpuset, node->cpuset) == 0) continue;
      Cpus cpus = common_cpus(core->cpuset, allowed);
      if (cpus.empty() || std::find(seen.begin(), seen.end(), cpus.front()) != seen.end()) continue;
      seen.push_back(cpus.front());
      cores.push_back(std::move(cpus));
    }
    if (!cores.empty()) nodes.push_back(std::move(cores));
  }
  return nodes;
}

std::vector<Cpus> share_cores(const std::vector<NodeCores>& nodes, int ranks, std::span<const Cpus> near) {
  std::vector<FreeCores> free;
  std::size_t cores = 0;
  for (const NodeCores& node : nodes) {
    free.push_back({&node});
    cores += node.size();
  }
  const std::size_t share = cores / static_cast<std::size_t>(ranks);
  if (share == 0) return {};
  std::vector<Cpus> shares;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
    Cpus own;
    for (std::size_t needed = share; needed > 0;) {
      FreeCores& node = next_node(free, needed, rank < near.size() ? near[rank] : Cpus{});
      for (; needed > 0 && node.left() > 0; --needed) {
        const Cpus& core = (*node.cores)[node.taken++];
        own.insert(own.end(), core.begin(), core.end());
      }
    }
    std::sort(own.begin(), own.end());
    shares.push_back(std::move(own));
  }
  return shares;
}

std::string list_of(const Cpus& cpus) { return cpu_list_text(cpus); }

Cpus listed_cpus(const std::string& text, const Cpus& usable) {
  const auto cpus = parse_cpu_list(text);
  if (!cpus || cpus->empty()) fail("--cpu_list {}: this is no list of CPUs, as 0-31,64-95", text);
  Cpus missing;
  std::set_difference(cpus->begin(), cpus->end(), usable.begin(), usable.end(), std::back_inserter(missing));
  if (!missing.empty())
    fail("--cpu_list {}: this process may use CPUs {} of this host, and {} are not among them", text, list_of(usable),
         list_of(missing));
  return *cpus;
}

namespace {

// What ranks do whose launcher has given each of them CPUs of its own: they keep them.
RankCores keep_launchers(const Topology& topology, const std::vector<Cpus>& allowed, const Cpus& own) {
  RankCores result{.by = RankCores::By::launcher, .cpus = static_cast<int>(own.size())};
  result.line = fmt::format("cores: the launcher has given each rank CPUs of its own, rank 0 {}", list_of(own));
  const auto there = static_cast<std::size_t>(hwloc_bitmap_weight(hwloc_topology_get_allowed_cpuset(topology.get())));
  const std::size_t given = std::accumulate(allowed.begin(), allowed.end(), std::size_t{0},
                                            [](std::size_t sum, const Cpus& cpus) { return sum + cpus.size(); });
  if (2 * given <= there)
    result.warning = fmt::format(
        "the launcher has bound its ranks to {} of the {} CPUs of the host: without that (mpirun --bind-to none) the "
        "program gives all of them to its ranks",
        given, there);
  return result;
}

// What one rank does with --cpu_list: it is bound to all of it.
RankCores bind_alone(const Topology& topology, const Cpus& cpus) {
  bind_process(topology.get(), cpus);
  return {.by = RankCores::By::program,
          .cpus = static_cast<int>(cpus.size()),
          .line = fmt::format("cores: bound to CPUs {} (--cpu_list)", list_of(cpus))};
}

}  // namespace

RankCores bind_ranks(Communicator& ranks, const BindOptions& options) {
  Cpus own = affinity();
  const bool listed = !options.cpu_list.empty();
  if (ranks.size() == 1 && !listed) return {.cpus = static_cast<int>(own.size())};
  const RankPlace& place = ranks.place();
  const Topology topology = load_topology();
  // A cgroup's cpuset is a bound to what a process may choose; an affinity is not.
  if (listed)
    own = listed_cpus(options.cpu_list, common_cpus(hwloc_topology_get_allowed_cpuset(topology.get()), all_cpus()));
  if (ranks.size() == 1) return bind_alone(topology, own);
  const std::vector<Cpus> allowed = of_host(ranks, own), near = of_host(ranks, options.near);
  if (place.local_size > 1 && !listed && disjoint(allowed)) return keep_launchers(topology, allowed, own);
  const bool alike = std::all_of(allowed.begin(), allowed.end(), [&](const Cpus& cpus) { return cpus == own; });
  const std::vector<NodeCores> nodes = cores_by_node(topology.get(), own);
  const std::vector<Cpus> shares =
      options.bind && alike ? share_cores(nodes, place.local_size, near) : std::vector<Cpus>{};
  RankCores result;
  if (shares.empty()) {
    if (listed) bind_process(topology.get(), own);
    result.cpus = std::max(1, static_cast<int>(own.size()) / place.local_size);
    result.line =
        fmt::format("cores: {} ranks share CPUs {} and are not bound to any ({})", place.local_size, list_of(own),
                    !options.bind ? "--bind_cores_to_rank false"
                    : !alike      ? listed ? "their --cpu_list differ" : "the launcher has given them CPUs that overlap"
                                  : "there are fewer cores than ranks");
    return result;
  }
  const Cpus& share = shares[static_cast<std::size_t>(place.local_rank)];
  bind_process(topology.get(), share);
  result.by = RankCores::By::program;
  result.cpus = static_cast<int>(share.size());
  result.line = fmt::format("cores: each of {} ranks is bound to its share of CPUs {}{}, rank 0 to {}",
                            place.local_size, list_of(own), listed ? " (--cpu_list)" : "", list_of(shares[0]));
  return result;
}

}  // namespace so
