#include "ops/runtime.h"

#include <algorithm>

namespace so {
namespace {

std::vector<int> first_cpus(int threads) {
  std::vector<int> cpus = usable_cpus();
  if (threads > 0) cpus.resize(std::min(cpus.size(), static_cast<std::size_t>(threads)));
  return cpus;
}

}  // namespace

Runtime::Runtime(DeviceChoice choice, int threads)
    : Runtime(choice == DeviceChoice::cuda || (choice == DeviceChoice::automatic && find_cuda().usable), threads) {}

// On the CPU neither pool is pinned or spins: they share the CPUs, and whoever has work should find a free one.
Runtime::Runtime(bool on_gpu, int threads)
    : host_pool_("host", on_gpu ? host_worker_cpus(usable_cores(), threads) : first_cpus(threads), on_gpu,
                 on_gpu ? ThreadPool::long_spin : ThreadPool::no_spin) {
  if (on_gpu) {
    device_ = make_cuda_device(0);
  } else {
    compute_pool_ = std::make_unique<ThreadPool>("compute", first_cpus(threads), false);
    device_ = make_cpu_device(*compute_pool_);
  }
  ops_ = make_ops(*device_);
}

}  // namespace so
