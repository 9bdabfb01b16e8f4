// The machine as a run uses it: thread pools, device, ops.
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "device/backend.h"
#include "ops/ops.h"

namespace so {

class Runtime {
 public:
  // `threads`: for host work; 0 means all usable CPUs, less a core for the thread that feeds a GPU. Beside a GPU they
  // are pinned; the calling thread is not. Throws Error if the device cannot be had. `automatic` is CUDA where there is
  // a usable GPU, else the CPU. `index` is the device's number among the visible ones of its kind. `own_cpus`: false:
  // other processes of the run work on the same CPUs, so nothing is pinned.
  Runtime(DeviceChoice choice, int threads, int index = 0, bool own_cpus = true);

  Device& device() { return *device_; }
  Ops& ops() { return *ops_; }
  ThreadPool& host_pool() { return host_pool_; }

 private:
  Runtime(const Backend& backend, int threads, int index, bool own_cpus);

  std::unique_ptr<ThreadPool> compute_pool_;  // what a CPU device spreads its streams' work over; else null
  ThreadPool host_pool_;                      // the optimizer and other host work
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
};

}  // namespace so
