// A communicator of NCCL's for one stream at a time, and the thread that watches it: NCCL's kernels wait for other
// ranks without end, so a rank that is lost, or that gives up, must be found beside them.
//
// Each rank's watch tells the others a few times a second how many collectives its GPU has begun, over a communicator
// of the host's. So a process that is gone or frozen is missed there, which names it; a rank that gave up is heard of;
// and one that does not come to a collective, in which the others' GPUs wait longer than the time limit, finds itself
// behind and gives up by name. Whatever happens becomes the error of the device's streams, and NCCL's kernels are
// ended.
#pragma once

#include <nccl.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "device/device.h"
#include "ranks/communicator.h"
#include "ranks/waiting.h"

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

  const RankPlace& place() const { return ranks_->place(); }

  // Enqueues what `calls` enqueues by the verbs below, all at once. `what` names it in errors and must not go. Returns
  // when NCCL has taken it, which waits for the other ranks when the connections to them are made. Throws the failure
  // of the ranks, or Error with NCCL's words.
  void group(Stream& stream, const char* what, const std::function<void()>& calls);
  // For `calls` alone.
  void send(const void* from, std::size_t bytes, int to);
  void receive(void* to, std::size_t bytes, int from);
  void all_gather(const void* own, std::size_t bytes, void* all);

 private:
  struct Pending {
    std::int64_t number;
    const char* what;
    std::unique_ptr<Event> begun, ended;
  };
  // A watch tells the others this.
  struct Beat {
    std::int64_t begun = 0;    // the last collective that this rank's GPU has come to
    std::int64_t overdue = 0;  // the one in which it waits longer than the time limit; 0: none
    std::int64_t leaving = 0;  // 1: it is the last beat
  };
  using Lock = std::unique_lock<std::mutex>;

  std::unique_ptr<Event> take_event();
  void settle(Lock& lock, ncclResult_t result, const char* what);
  void watch() noexcept;
  void watch_until_left();
  Beat look();
  void judge(const std::vector<Beat>& beats);
  [[noreturn]] void give_up(const std::string& reason);
  void fail(std::exception_ptr error) noexcept;
  void close() noexcept;

  Device& device_;
  const std::unique_ptr<Communicator> ranks_;  // the watch's
  cudaStream_t stream_ = nullptr;              // of the group that is being made

  std::mutex mutex_;  // guards what follows, and NCCL's calls
  std::condition_variable changed_;
  ncclComm_t comm_ = nullptr;  // null after a failure
  std::exception_ptr failure_;
  std::int64_t number_ = 0;  // of the last collective
  std::deque<Pending> pending_;
  std::vector<std::unique_ptr<Event>> events_;  // not in use
  bool leaving_ = false;

  std::int64_t waiting_for_ = 0;  // the collective that `waiting_` counts for; the watch's
  std::optional<RankWait> waiting_;
  std::thread watch_;
};

}  // namespace so
