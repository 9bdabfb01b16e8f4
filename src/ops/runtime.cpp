#include "ops/runtime.h"

#include <algorithm>

#include "base/cpus.h"
#include "base/log.h"
#include "device/gpu_place.h"
#include "ops/thread_placement.h"

namespace so {
namespace {

// The CPUs of the host's workers beside a device with processors of its own; says in the log which they are.
std::vector<int> workers_beside(int threads, int index) {
  const ThreadPlacement placement = place_threads(usable_cores(), threads, cpus_near(gpu_pci_address(index)));
  log_info("{}", placement_line(placement));
  return placement.workers;
}

std::vector<int> first_cpus(int threads) {
  std::vector<int> cpus = usable_cpus();
  if (threads > 0) cpus.resize(std::min(cpus.size(), static_cast<std::size_t>(threads)));
  return cpus;
}

const Backend& backend_for(DeviceChoice choice, int index) {
  const bool gpu = choice == DeviceChoice::cuda || (choice == DeviceChoice::automatic && choose_cuda(index));
  return gpu ? cuda_backend() : cpu_backend();
}

}  // namespace

Runtime::Runtime(DeviceChoice choice, int threads, int index, bool own_cpus)
    : Runtime(backend_for(choice, index), threads, index, own_cpus) {}

// On the CPU neither pool is pinned or spins: they share the CPUs, and whoever has work should find a free one.
Runtime::Runtime(const Backend& backend, int threads, int index, bool own_cpus)
    : compute_pool_(backend.own_processors ? nullptr
                                           : std::make_unique<ThreadPool>("compute", first_cpus(threads), false)),
      host_pool_("host", backend.own_processors && own_cpus ? workers_beside(threads, index) : first_cpus(threads),
                 backend.own_processors && own_cpus,
                 backend.own_processors && own_cpus ? ThreadPool::long_spin : ThreadPool::no_spin),
      device_(backend.make(compute_pool_.get(), index)),
      ops_(make_ops(*device_)) {}

}  // namespace so
