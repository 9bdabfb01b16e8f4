#include "device/cuda/stream_thread.h"

#include <chrono>
#include <new>
#include <utility>

#include "base/error.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/stream_values.h"

namespace so {

WaitWords::~WaitWords() {
  if (memory_ != nullptr) cudaFreeHost(memory_);
}

void WaitWords::allocate() {
  const std::lock_guard lock(mutex_);
  if (memory_ != nullptr) return;
  using Value = std::atomic<std::uint32_t>;
  static_assert(sizeof(Value) == sizeof(std::uint32_t));
  SO_CUDA(cudaHostAlloc(&memory_, count * sizeof(Value), cudaHostAllocMapped | cudaHostAllocPortable));
  void* there = nullptr;
  SO_CUDA(cudaHostGetDevicePointer(&there, memory_, 0));
  for (std::size_t i = 0; i < count; ++i)
    free_.push_back(
        {new (static_cast<Value*>(memory_) + i) Value(0), reinterpret_cast<std::uint64_t>(there) + i * sizeof(Value)});
}

WaitWords::Word WaitWords::take() {
  require_stream_values();
  const std::lock_guard lock(mutex_);
  SO_CHECK(!free_.empty(), "more than {} streams wait for host work", count);
  const Word word = free_.back();
  free_.pop_back();
  word.here->store(0);
  return word;
}

void WaitWords::give_back(Word word) {
  const std::lock_guard lock(mutex_);
  free_.push_back(word);
}

StreamThread::StreamThread(WaitWords& words) : words_(words), reached_(words.take()), done_(words.take()) {
  thread_ = std::thread([this] { run(); });
}

StreamThread::~StreamThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  words_.give_back(reached_);
  words_.give_back(done_);
}

void StreamThread::enqueue(cudaStream_t stream, std::function<void()> work) {
  write_value(stream, reached_.on_device, ++number_);
  {
    const std::lock_guard lock(mutex_);
    items_.push_back({number_, std::move(work)});
  }
  changed_.notify_all();
  wait_for_value(stream, done_.on_device, number_);
}

// Work that is awaited takes longer than such a nap: it waits for other ranks.
bool StreamThread::wait_until_reached(std::uint32_t number) const {
  constexpr std::chrono::microseconds nap{20};
  const auto reached = [&] {
    return static_cast<std::int32_t>(reached_.here->load(std::memory_order_acquire) - number) >= 0;
  };
  while (!reached()) {
    if (stop_) return reached();
    std::this_thread::sleep_for(nap);
  }
  return true;
}

void StreamThread::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !items_.empty(); });
    if (items_.empty()) return;
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    if (!wait_until_reached(item.number)) return;
    item.work();
    item.work = nullptr;  // what it keeps alive goes before the stream goes on
    done_.here->store(item.number, std::memory_order_release);
    lock.lock();
  }
}

}  // namespace so
