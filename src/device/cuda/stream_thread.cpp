#include "device/cuda/stream_thread.h"

#include <cuda.h>
#include <dlfcn.h>

#include <chrono>
#include <new>
#include <utility>

#include "base/error.h"
#include "device/cuda/cuda_check.h"

namespace so {
namespace {

using StreamValue = CUresult (*)(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);

struct StreamValues {
  StreamValue write = nullptr, wait = nullptr;
};

// The runtime has no such calls, and the driver is no library of the build's: the runtime has loaded it.
StreamValues find_stream_values() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return {};
  const auto find = [&](const char* newest, const char* oldest) {
    void* call = dlsym(driver, newest);
    if (call == nullptr) call = dlsym(driver, oldest);
    return reinterpret_cast<StreamValue>(call);
  };
  return {.write = find("cuStreamWriteValue32_v2", "cuStreamWriteValue32"),
          .wait = find("cuStreamWaitValue32_v2", "cuStreamWaitValue32")};
}

const StreamValues& stream_values() {
  static const StreamValues calls = find_stream_values();
  return calls;
}

void check_value(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS)
    fail("CUDA: a stream cannot wait for host work ({}: error {})", call, static_cast<int>(result));
}

}  // namespace

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
  if (stream_values().write == nullptr || stream_values().wait == nullptr) {
    words_.give_back(reached_);
    words_.give_back(done_);
    fail("this NVIDIA driver has no cuStreamWriteValue32 and cuStreamWaitValue32: update it");
  }
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
  check_value(stream_values().write(stream, reached_.on_device, ++number_, CU_STREAM_WRITE_VALUE_DEFAULT),
              "cuStreamWriteValue32");
  {
    const std::lock_guard lock(mutex_);
    items_.push_back({number_, std::move(work)});
  }
  changed_.notify_all();
  check_value(stream_values().wait(stream, done_.on_device, number_, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32");
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
