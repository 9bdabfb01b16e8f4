// How the CUDA runtime pins host memory.
#include <cuda_runtime_api.h>

#include "device/cuda/cuda_device.h"

namespace so {
namespace {

// Why a call failed; empty: it did not. What can be cleared is, or the next launch would report it.
std::string why_failed(cudaError_t status) {
  if (status == cudaSuccess) return {};
  cudaGetLastError();
  return cudaGetErrorString(status);
}

}  // namespace

PinningCalls cuda_pinning_calls() {
  return {.pin =
              [](void* data, std::size_t bytes) {
                return why_failed(cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
              },
          .unpin = [](void* data) { (void)why_failed(cudaHostUnregister(data)); },
          .allocate = [](std::size_t bytes, std::string& reason) -> void* {
            void* data = nullptr;
            const std::string why =
                why_failed(cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
            if (why.empty()) return data;
            reason = why;
            return nullptr;
          },
          .free = [](void* data) { (void)why_failed(cudaFreeHost(data)); },
          .address = [](void* data) -> void* {
            void* there = nullptr;
            return why_failed(cudaHostGetDevicePointer(&there, data, 0)).empty() ? there : nullptr;
          }};
}

}  // namespace so
