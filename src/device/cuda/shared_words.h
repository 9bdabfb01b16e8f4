// Words of host memory that processes of a host share, by which streams of their GPUs wait for each other
// (stream_values.h). The host sees them too, and may end a wait.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "device/host_pinning.h"

namespace so {

class SharedWords {
 public:
  // Makes `count` words that are 0 and a name for them, on this host. Throws Error if there is no room.
  explicit SharedWords(int count);
  // Maps those that another process, or this one, has made.
  SharedWords(const std::string& name, int count);
  // Makes words that this process alone sees, with its GPU.
  enum class Unshared : std::uint8_t { words };
  SharedWords(Unshared, int count);
  ~SharedWords();
  SharedWords(const SharedWords&) = delete;
  SharedWords& operator=(const SharedWords&) = delete;

  const std::string& name() const { return name_; }
  // Nobody can map them by their name from now on; whoever has, keeps them. The destructor of their maker does it too.
  void unlink();

  std::atomic<std::uint32_t>& at(int i) const { return *(words_ + stride * i); }
  // Its address on the GPU that was the thread's current device when the words were mapped.
  std::uint64_t on_device(int i) const {
    return on_device_ + sizeof(std::uint32_t) * static_cast<std::uint64_t>(stride * i);
  }

 private:
  static constexpr int stride = 16;  // a cache line each

  void map(int file, std::size_t bytes);

  std::string name_;
  bool linked_ = false;
  std::size_t bytes_ = 0;           // of a file
  std::optional<HostPinning> own_;  // of words of no file
  std::atomic<std::uint32_t>* words_ = nullptr;
  std::uint64_t on_device_ = 0;
};

}  // namespace so
