#include "ops/thread_placement.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/cpus.h"
#include "base/proc_text.h"

namespace so {
namespace {

bool has_one_of(const std::vector<int>& core, const std::vector<int>& cpus) {
  return std::any_of(core.begin(), core.end(),
                     [&](int cpu) { return std::find(cpus.begin(), cpus.end(), cpu) != cpus.end(); });
}

std::string cpu_text(std::vector<int> cpus) {
  std::sort(cpus.begin(), cpus.end());
  return cpu_list_text(cpus);
}

}  // namespace

ThreadPlacement place_threads(std::span<const std::vector<int>> cores, int threads, const std::vector<int>& near) {
  std::vector<std::vector<int>> order(cores.begin(), cores.end());
  std::stable_partition(order.begin(), order.end(), [&](const auto& core) { return has_one_of(core, near); });
  ThreadPlacement placement;
  placement.workers = host_worker_cpus(order, threads);
  if (!has_one_of(order.front(), placement.workers)) {
    placement.feeding = order.front();
    placement.near = has_one_of(order.front(), near);
  }
  return placement;
}

std::string placement_line(const ThreadPlacement& placement) {
  const std::string workers =
      fmt::format("threads: AdamW and other host work on {} CPU{}, {}, a thread each", placement.workers.size(),
                  placement.workers.size() == 1 ? "" : "s", cpu_text(placement.workers));
  if (placement.feeding.empty()) return workers + "; no core is left to the thread that feeds the GPU";
  return fmt::format("{}; the thread that feeds the GPU has CPU{} {}{} for itself", workers,
                     placement.feeding.size() > 1 ? "s" : "", cpu_text(placement.feeding),
                     placement.near ? ", near the GPU," : "");
}

}  // namespace so
