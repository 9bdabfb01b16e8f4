// Which cores of a process its threads work on beside a GPU: one core for the thread that feeds the GPU, the others for
// AdamW and other host work.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace so {

struct ThreadPlacement {
  std::vector<int> feeding;  // CPUs of the core that is left to the thread that feeds the GPU; empty if none is
  std::vector<int> workers;  // a thread each, pinned: one hardware thread of a core first
  bool near = false;         // whether the feeding core is near the GPU; false also if nothing is known of that
};

// Cores that have one of the CPUs `near` the GPU are taken before the others, each group in the order it is in. `cores`
// and `threads` as host_worker_cpus() has them. With few cores none is left to the feeding thread.
ThreadPlacement place_threads(std::span<const std::vector<int>> cores, int threads, const std::vector<int>& near);

// For the log: "threads: ...".
std::string placement_line(const ThreadPlacement& placement);

}  // namespace so
