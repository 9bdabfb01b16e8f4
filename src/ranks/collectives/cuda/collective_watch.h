// The thread that watches the collectives of one stream at a time: a GPU waits for other ranks without end, so a rank
// that is lost, or that gives up, must be found beside it.
//
// A watch is a heartbeat: a few times a second each rank tells the others, through a host communicator, how many
// collectives its GPU has begun. A process that is gone or frozen misses the exchange, which names it. A rank that gave
// up says so. When GPUs have waited in a collective longer than the time limit, a rank whose GPU has not begun that
// collective sees that it is behind, and gives up under its own name. Each of these becomes the error of the device's
// streams, and ends what the GPU waits for.
//
// CUDA lets no more work be enqueued than its queues hold: while the GPU waits for a rank that is lost, the thread that
// enqueues soon waits inside of CUDA. So the watch calls nothing of CUDA's, and shares no lock that is held during such
// calls: streams say in words of host memory which collectives they have come to.
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

#include "device/cuda/shared_words.h"
#include "device/device.h"
#include "ranks/communicator.h"
#include "ranks/waiting.h"

namespace so {

class CollectiveWatch {
 public:
  // This is what carries the collectives. The watch's thread calls its functions.
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

  // The calls of the thread that enqueues.
  // Throws the failure of the ranks, if there is one.
  void rethrow() const {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }
  // Enqueue the first and the last of a collective's work. begin() throws as rethrow() does. `what` names the
  // collective in errors and must not go. One that is begun may be left without an end, after an error.
  struct Collective {
    std::int64_t number = 0;
    const char* what = nullptr;
  };
  Collective begin(Stream& stream, const char* what);
  void end(Stream& stream, const Collective& collective);
  // This rank cannot go on, for this reason. Any thread.
  [[noreturn]] void give_up(const std::string& reason);

 private:
  // A watch tells the others this.
  struct Beat {
    std::int64_t begun = 0;    // the last collective that this rank's GPU has come to
    std::int64_t overdue = 0;  // the one in which it waits longer than the time limit; 0: none
    std::int64_t leaving = 0;  // 1: it is the last beat
  };

  // Streams write the number of a collective when they come to it, and when it has ended.
  enum class Word : std::uint8_t { begun, ended };
  static constexpr int word_count = 2;
  void write(Stream& stream, Word word, const Collective& collective);
  bool has(Word word, const Collective& collective) const;

  void watch() noexcept;
  void watch_until_left();
  Beat look();
  void judge(const std::vector<Beat>& beats);
  void fail(std::exception_ptr error) noexcept;

  Device& device_;
  const std::unique_ptr<Communicator> ranks_;
  const Carrier carrier_;
  SharedWords words_;

  mutable std::mutex mutex_;  // guards what follows; held for no call of CUDA's
  std::condition_variable changed_;
  std::exception_ptr failure_;
  std::int64_t number_ = 0;  // of the last collective that was begun
  std::deque<Collective> pending_;
  bool leaving_ = false;

  std::int64_t waiting_for_ = 0;  // the collective that `waiting_` counts for; the watch's
  std::optional<RankWait> waiting_;
  std::thread thread_;
};

}  // namespace so
