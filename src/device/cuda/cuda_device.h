// The CUDA device's interface for ops/cuda and optim/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "device/host_pinning.h"

namespace so {

struct CudaProperties {
  int index = 0;
  int multiprocessors = 0;
  int capability = 0;  // 10 * major + minor
  std::size_t l2_bytes = 0;
};

// The CUDA handle of this stream, whose device it makes the calling thread's: what the caller launches or enqueues with
// it goes there. A handle must not be passed to another thread. Bug if the stream belongs to another backend.
cudaStream_t cuda_stream(Stream& stream);
const CudaProperties& cuda_properties(Device& device);

// The driver's, for the thread's current device.
PinningCalls cuda_pinning_calls();
// make_cuda_device() with others, which tests have refuse.
std::unique_ptr<Device> make_cuda_device(int index, PinningCalls pinning);

// Whoever waits for this device's streams and events from now on throws `error`, as if host work had thrown it, unless
// there is an earlier one. Thread-safe, and waits for nothing.
void fail_streams(Device& device, std::exception_ptr error);

// The streams that live now, with their names. Thread-safe.
std::vector<std::pair<cudaStream_t, std::string>> cuda_streams();

}  // namespace so
