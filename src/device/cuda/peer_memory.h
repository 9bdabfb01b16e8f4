// Memory of a GPU that ranks with other GPUs of this host write to.
#pragma once

#include <cstddef>
#include <string>

#include "device/device.h"

namespace so {

// Returns what other ranks of this host need to map a buffer of the thread's current device. It must be an allocation
// of its own and at least shareable_bytes long (device/gpu_place.h). It must outlive what they map.
std::string share_memory(const Buffer& memory);

// Another rank's buffer, as the thread's current device sees it. Ranks that are threads of one process use the
// buffer itself, and must share one device.
class PeerMemory {
 public:
  // Throws Error where the driver cannot map it.
  explicit PeerMemory(const std::string& shared);
  ~PeerMemory();
  PeerMemory(PeerMemory&& other) noexcept;
  PeerMemory& operator=(PeerMemory&&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  bool mapped_ = false;
};

}  // namespace so
