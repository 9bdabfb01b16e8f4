// A communicator of NCCL's for one stream at a time, watched (ranks/collectives/cuda/collective_watch.h): NCCL's
// kernels wait for other ranks without end.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>

#include "device/device.h"
#include "ranks/collectives/cuda/collective_watch.h"
#include "ranks/communicator.h"

namespace so {

class NcclCommunicator {
 public:
  // A collective; takes a duplicate of `ranks`. Throws Error on all ranks alike where they cannot be connected. NCCL's
  // kernels have `most_blocks` thread blocks at most, or, if it is 0, as many as NCCL takes.
  NcclCommunicator(Device& device, Communicator& ranks, int most_blocks = 0);
  // After all work has run. Ends the communicator with the others, or without them if they do not come.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  const RankPlace& place() const { return watch_->place(); }

  // Enqueues what `calls` enqueues by the verbs below, all at once. `what` names it in errors and must not go. Returns
  // when NCCL has taken it, which waits for the other ranks when the connections to them are made. Throws the failure
  // of the ranks, or Error with NCCL's words.
  void group(Stream& stream, const char* what, const std::function<void()>& calls);
  // For `calls` alone.
  void send(const void* from, std::size_t bytes, int to);
  void receive(void* to, std::size_t bytes, int from);
  void all_gather(const void* own, std::size_t bytes, void* all);

 private:
  using Lock = std::unique_lock<std::timed_mutex>;
  void settle(Lock& lock, ncclResult_t result, const char* what);
  void check(const char* what);
  void abort() noexcept;
  void close() noexcept;

  Device& device_;
  cudaStream_t stream_ = nullptr;  // of the group that is being made
  std::timed_mutex calls_;         // guards the communicator, which one thread at a time may call
  ncclComm_t comm_ = nullptr;      // null after a failure
  std::unique_ptr<CollectiveWatch> watch_;
};

}  // namespace so
