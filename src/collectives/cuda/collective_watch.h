// The thread that watches the collectives of one stream at a time: a GPU waits for other ranks without end, so a rank
// that is lost, or that gives up, must be found beside it.
//
// Each rank's watch tells the others a few times a second how many collectives its GPU has begun, over a communicator
// of the host's. So a process that is gone or frozen is missed there, which names it; a rank that gave up is heard of;
// and one that does not come to a collective, in which the others' GPUs wait longer than the time limit, finds itself
// behind and gives up by name. Whatever happens becomes the error of the device's streams, and what the GPU waits for
// is ended.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "device/device.h"
#include "ranks/communicator.h"
#include "ranks/waiting.h"

namespace so {

class CollectiveWatch {
 public:
  using Lock = std::unique_lock<std::mutex>;
  // This is what carries the collectives. The watch's thread calls its functions with the lock held.
  struct Carrier {
    const char* collective;                       // as in "... has not ended": "a collective of NCCL's"
    std::function<void(const char* what)> check;  // throws the carrier's own failure; may be empty
    std::function<void()> end;                    // after a failure, again and again: frees what the GPU waits in
  };
  // `ranks` is the watch's own, a duplicate. The device must outlive it.
  CollectiveWatch(Device& device, std::unique_ptr<Communicator> ranks, Carrier carrier);
  ~CollectiveWatch() { stop(); }
  CollectiveWatch(const CollectiveWatch&) = delete;
  CollectiveWatch& operator=(const CollectiveWatch&) = delete;

  // After all work has run: tells the other ranks, and ends the thread. Idempotent.
  void stop();

  const RankPlace& place() const { return ranks_->place(); }
  Communicator& ranks() const { return *ranks_; }  // for its time limits

  // The calls of the thread that enqueues. lock() guards them, and the carrier.
  Lock lock() { return Lock(mutex_); }
  // Throws the failure of the ranks, if there is one. With the lock held, as the others below.
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }
  // Enqueue the first and the last of a collective's work. `what` names it in errors and must not go. A collective that
  // is begun may be left without an end, as after an error.
  struct Collective {
    std::int64_t number = 0;
    const char* what = nullptr;
    std::unique_ptr<Event> begun, ended;
  };
  Collective begin(Stream& stream, const char* what);
  void end(Stream& stream, Collective collective);
  // This rank cannot go on, for this reason. Any thread, with or without the lock.
  [[noreturn]] void give_up(const std::string& reason);

 private:
  // A watch tells the others this.
  struct Beat {
    std::int64_t begun = 0;    // the last collective that this rank's GPU has come to
    std::int64_t overdue = 0;  // the one in which it waits longer than the time limit; 0: none
    std::int64_t leaving = 0;  // 1: it is the last beat
  };

  std::unique_ptr<Event> take_event();
  void watch() noexcept;
  void watch_until_left();
  Beat look();
  void judge(const std::vector<Beat>& beats);
  void fail(std::exception_ptr error) noexcept;

  Device& device_;
  const std::unique_ptr<Communicator> ranks_;
  const Carrier carrier_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::exception_ptr failure_;
  std::int64_t number_ = 0;  // of the last collective
  std::deque<Collective> pending_;
  std::vector<std::unique_ptr<Event>> events_;  // not in use
  bool leaving_ = false;

  std::int64_t waiting_for_ = 0;  // the collective that `waiting_` counts for; the watch's
  std::optional<RankWait> waiting_;
  std::thread thread_;
};

}  // namespace so
