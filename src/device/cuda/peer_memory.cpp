#include "device/cuda/peer_memory.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/error.h"
#include "device/gpu_place.h"

namespace so {
namespace {

struct SharedMemory {
  pid_t process = 0;
  std::byte* data = nullptr;  // there
  cudaIpcMemHandle_t handle{};
};

// Containers may forbid it.
void check_sharing(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  fail("GPUs' memory cannot be shared between processes here (CUDA: {}: {}); --collectives nccl does without it",
       cudaGetErrorString(status), call);
}

}  // namespace

std::string share_memory(const Buffer& memory) {
  SO_CHECK(memory.kind() == MemoryKind::device && memory.bytes() >= shareable_bytes, "{} bytes to share",
           memory.bytes());
  SharedMemory shared{.process = getpid(), .data = static_cast<std::byte*>(memory.data())};
  check_sharing(cudaIpcGetMemHandle(&shared.handle, memory.data()), "cudaIpcGetMemHandle");
  return {reinterpret_cast<const char*>(&shared), sizeof shared};
}

PeerMemory::PeerMemory(const std::string& text) {
  SharedMemory shared;
  SO_CHECK(text.size() == sizeof shared, "shared memory of {} bytes", text.size());
  std::memcpy(&shared, text.data(), sizeof shared);
  if (shared.process == getpid()) {
    data_ = shared.data;
    return;
  }
  void* data = nullptr;
  check_sharing(cudaIpcOpenMemHandle(&data, shared.handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
  data_ = static_cast<std::byte*>(data);
  mapped_ = true;
}

PeerMemory::~PeerMemory() {
  if (mapped_) cudaIpcCloseMemHandle(data_);
}

PeerMemory::PeerMemory(PeerMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), mapped_(std::exchange(other.mapped_, false)) {}

}  // namespace so
