// Host work that a CUDA stream waits for, on a thread of its own. CUDA's own host functions may run one at a time, so
// one that waited for another stream's would wait for ever.
//
// The stream and the thread tell each other by words of mapped memory how far they are, and the thread makes no CUDA
// calls: a kernel that is loaded at its first use may wait, under the driver's lock, until the device is idle, and the
// device waits for the thread.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace so {

// Words of mapped host memory by which a device's streams and their threads wait for each other. They are allocated all
// at once, before any stream waits: an allocation may itself wait for the device's work, and so for the very thread
// that makes it.
class WaitWords {
 public:
  struct Word {
    std::atomic<std::uint32_t>* here = nullptr;
    std::uint64_t on_device = 0;  // its address there
  };

  WaitWords() = default;
  ~WaitWords();
  WaitWords(const WaitWords&) = delete;
  WaitWords& operator=(const WaitWords&) = delete;

  // On the calling thread's current device. The first call allocates; the others do nothing.
  void allocate();
  // A word that is 0, for as long as it is not given back. Throws Error if this driver's streams cannot write a value
  // to memory or wait for one.
  Word take();
  void give_back(Word word);

 private:
  static constexpr std::size_t count = 1024;  // a page

  std::mutex mutex_;
  void* memory_ = nullptr;
  std::vector<Word> free_;
};

class StreamThread {
 public:
  // Throws as WaitWords::take() does. `words` must outlive it.
  explicit StreamThread(WaitWords& words);
  // After the stream has been synchronised. What it has not come to by then, because the device has failed, is not run.
  ~StreamThread();
  StreamThread(const StreamThread&) = delete;
  StreamThread& operator=(const StreamThread&) = delete;

  // Enqueues `work` behind all that is in the stream. It must not throw. One thread at a
  // time calls, with one stream.
  void enqueue(cudaStream_t stream, std::function<void()> work);

 private:
  struct Item {
    std::uint32_t number;
    std::function<void()> work;
  };
  void run();
  bool wait_until_reached(std::uint32_t number) const;  // false: it will not be

  WaitWords& words_;
  const WaitWords::Word reached_, done_;  // the numbers of the last work that the stream has come to, and that has run
  std::uint32_t number_ = 0;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Item> items_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace so
