#include "device/cuda/stream_thread.h"

#include <cuda.h>
#include <dlfcn.h>

#include <new>
#include <utility>

#include "base/error.h"
#include "device/cuda/cuda_check.h"

namespace so {
namespace {

using WaitValue = CUresult (*)(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);

// The runtime has no such call, and the driver is no library of the build's: the runtime has loaded it.
WaitValue find_wait_value() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return nullptr;
  void* call = dlsym(driver, "cuStreamWaitValue32_v2");
  if (call == nullptr) call = dlsym(driver, "cuStreamWaitValue32");
  return reinterpret_cast<WaitValue>(call);
}

WaitValue wait_value() {
  static const WaitValue call = find_wait_value();
  return call;
}

}  // namespace

StreamThread::StreamThread(int device) : device_(device) {
  if (wait_value() == nullptr) fail("this NVIDIA driver has no cuStreamWaitValue32: update it");
  void* memory = nullptr;
  SO_CUDA(cudaHostAlloc(&memory, sizeof *done_, cudaHostAllocMapped | cudaHostAllocPortable));
  done_ = new (memory) std::atomic<std::uint32_t>(0);
  void* there = nullptr;
  SO_CUDA(cudaHostGetDevicePointer(&there, memory, 0));
  done_on_device_ = reinterpret_cast<std::uint64_t>(there);
  thread_ = std::thread([this] { run(); });
}

StreamThread::~StreamThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  cudaFreeHost(done_);
}

void StreamThread::enqueue(cudaStream_t stream, std::function<void()> work) {
  cudaEvent_t reached = nullptr;
  SO_CUDA(cudaEventCreateWithFlags(&reached, cudaEventDisableTiming | cudaEventBlockingSync));
  SO_CUDA(cudaEventRecord(reached, stream));
  {
    const std::lock_guard lock(mutex_);
    items_.push_back({++number_, reached, std::move(work)});
  }
  changed_.notify_all();
  const CUresult result = wait_value()(stream, done_on_device_, number_, CU_STREAM_WAIT_VALUE_GEQ);
  if (result != CUDA_SUCCESS)
    fail("CUDA: a stream cannot wait for host work (cuStreamWaitValue32: error {})", static_cast<int>(result));
}

void StreamThread::run() {
  cudaSetDevice(device_);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !items_.empty(); });
    if (items_.empty()) return;
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    // An error of the device's earlier work reaches whoever waits for the stream; this only keeps nobody waiting.
    cudaEventSynchronize(item.reached);
    item.work();
    item.work = nullptr;  // what it keeps alive goes before the stream goes on
    done_->store(item.number, std::memory_order_release);
    cudaEventDestroy(item.reached);
    lock.lock();
  }
}

}  // namespace so
