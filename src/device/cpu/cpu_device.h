// The CPU device's interface for the cpu folders of ops and optim: work is any function.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "device/trace.h"

namespace so {

// A stream is one worker thread with a queue; work spreads over the device's thread pool.
class CpuStream final : public Stream {
 public:
  CpuStream(Device& device, ThreadPool& pool, std::string name);
  ~CpuStream() override;  // runs what is queued, then ends the thread

  Device& device() const override { return device_; }
  std::string_view name() const override { return lane_.name(); }
  ThreadPool& pool() const { return pool_; }

  // `function` runs on the stream's thread, after all work enqueued before it. `name` is what a trace calls it, and
  // `category` where its summary counts it. The stream's device must be the calling thread's, which cpu() sees to.
  void enqueue(std::string_view name, WorkCategory category, std::function<void()> function);

  void record(Event& event) override;
  void wait(Event& event) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void zero(void* to, std::size_t bytes) override;
  void yield() override {}  // a stream is a thread of its own
  void host(std::string_view name, std::function<void()> function) override;
  void await(std::string_view name, std::function<void()> function) override { host(name, std::move(function)); }
  void synchronize() override;

 private:
  struct Queue;
  struct Work;
  // Makes the device current and enqueues.
  void enter(Work work);
  // Enqueues. Bug if another device is the calling thread's.
  void push(Work work);
  void run();

  Device& device_;
  ThreadPool& pool_;
  const TraceLane lane_;
  std::unique_ptr<Queue> queue_;
  std::thread thread_;
};

// The stream as a CpuStream, whose device it makes the calling thread's; Bug if it belongs to another backend.
inline CpuStream& cpu(Stream& stream) {
  auto* own = dynamic_cast<CpuStream*>(&stream);
  SO_CHECK(own, "stream '{}' is not a CPU stream", stream.name());
  own->device().make_current();
  return *own;
}

}  // namespace so
