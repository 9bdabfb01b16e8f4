// Host work that a CUDA stream waits for, on a thread of its own. CUDA's own host functions may run one at a time, so
// one that waited for another stream's would wait for ever.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace so {

class StreamThread {
 public:
  // `device`: the index of the calling thread's current device. Throws Error if this driver's streams cannot wait for a
  // value in memory.
  explicit StreamThread(int device);
  // Waits for all work, which no stream must be about to enqueue.
  ~StreamThread();
  StreamThread(const StreamThread&) = delete;
  StreamThread& operator=(const StreamThread&) = delete;

  // Enqueues: `work` runs after what the stream has, and before what follows there. It must not throw. One thread at a
  // time calls, with one stream.
  void enqueue(cudaStream_t stream, std::function<void()> work);

 private:
  struct Item {
    std::uint32_t number;
    cudaEvent_t reached;  // the stream has come to it
    std::function<void()> work;
  };
  void run();

  const int device_;
  std::atomic<std::uint32_t>* done_ = nullptr;  // the number of the last work that has run, in mapped host memory
  std::uint64_t done_on_device_ = 0;            // its address there
  std::uint32_t number_ = 0;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace so
