// Makes the device under test (support/on_gpu.h).
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "device/device.h"
#include "support/on_gpu.h"

namespace so::test {

// Where there is a choice, the device is not the calling thread's current one: the CPU gets an index that no thread
// begins with, and a second GPU leaves the thread with the first. So every test shows that work goes to the device that
// it was enqueued for.
inline int index_under_test() { return !on_gpu() ? 3 : device_under_test().ends_with(":1") ? 1 : 0; }
inline std::unique_ptr<Device> make_test_device(ThreadPool& pool) {
  const int index = index_under_test();
  if (!on_gpu()) return make_cpu_device(pool, index);
  std::unique_ptr<Device> device = make_cuda_device(index);
  if (index > 0) make_cuda_device(0)->make_current();
  return device;
}

}  // namespace so::test
