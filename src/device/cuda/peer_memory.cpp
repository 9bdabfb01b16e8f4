#include "device/cuda/peer_memory.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/error.h"
#include "device/cuda/cuda_check.h"

namespace so {
namespace {

struct SharedMemory {
  pid_t process = 0;
  std::byte* data = nullptr;  // there
  cudaIpcMemHandle_t handle{};
};

}  // namespace

std::string share_memory(const Buffer& memory) {
  SO_CHECK(memory.kind() == MemoryKind::device && memory.bytes() >= shareable_bytes, "{} bytes to share",
           memory.bytes());
  SharedMemory shared{.process = getpid(), .data = static_cast<std::byte*>(memory.data())};
  SO_CUDA(cudaIpcGetMemHandle(&shared.handle, memory.data()));
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
  SO_CUDA(cudaIpcOpenMemHandle(&data, shared.handle, cudaIpcMemLazyEnablePeerAccess));
  data_ = static_cast<std::byte*>(data);
  mapped_ = true;
}

PeerMemory::~PeerMemory() {
  if (mapped_) cudaIpcCloseMemHandle(data_);
}

PeerMemory::PeerMemory(PeerMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), mapped_(std::exchange(other.mapped_, false)) {}

}  // namespace so
