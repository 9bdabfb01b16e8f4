// The CPUs that the calling thread may use: those of its affinity mask, which a new thread inherits.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace so {

// The cores of these CPUs, each as the operating-system indices of its hardware threads that are in the mask. From
// hwloc. At least one core, none of them empty.
std::vector<std::vector<int>> usable_cores();

// The CPUs of usable_cores(), one hardware thread per core first, then their siblings.
std::vector<int> usable_cpus();

// CPUs for `threads` workers beside a thread that feeds a GPU, or with 0 for as many as leave that thread a core: one
// hardware thread per core first, then their siblings, and the first of `cores` last. With fewer than 4 cores none is
// left, and the first keeps its place. Never more than there are.
std::vector<int> host_worker_cpus(std::span<const std::vector<int>> cores, int threads);

// How many the calling thread may use: at least one.
std::size_t count_usable_cpus();

}  // namespace so
