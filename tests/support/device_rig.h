// The device under test (support/on_gpu.h), with one stream.
#pragma once

#include <memory>
#include <numeric>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "support/make_device.h"

namespace so::test {

class DeviceRig {
 public:
  // `threads`: of the CPU device's pool.
  explicit DeviceRig(int threads = 2)
      : pool_("test", cpus(threads), false),
        device_(make_test_device(pool_)),
        stream_(device_->create_stream("test")) {}

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }

 private:
  static std::vector<int> cpus(int threads) {
    std::vector<int> list(static_cast<std::size_t>(threads));
    std::iota(list.begin(), list.end(), 0);
    return list;
  }

  ThreadPool pool_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace so::test
