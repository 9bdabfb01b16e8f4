// An NVIDIA GPU through the CUDA runtime.
#include "device/cuda/cuda_device.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "base/delay_point.h"
#include "base/error.h"
#include "device/cuda/cublas_lt.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cudnn_library.h"
#include "device/cuda/empty_kernel.h"
#include "device/cuda/stream_thread.h"
#include "device/cuda_runtime.h"
#include "device/gpu_place.h"
#include "device/host_pages.h"
#include "device/host_pinning.h"
#include "device/trace.h"

namespace so {

void cuda_check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears what can be cleared
  if (status == cudaErrorMemoryAllocation) fail("the GPU has no memory left ({})", call);
  fail("CUDA: {} ({}): {}", cudaGetErrorString(status), cudaGetErrorName(status), call);
}

namespace {

constexpr int lowest_capability = 80;  // bf16 matrix units

// The first exception of any host function on the device. One for all streams: following who waited for whom would put
// host functions into streams that must not stop for them.
class Failure {
 public:
  void set(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    failed_.store(true);
  }
  bool failed() const { return failed_.load(); }
  std::exception_ptr error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  void rethrow() const {
    if (failed()) std::rethrow_exception(error());
  }

 private:
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
};

class CudaEvent final : public Event {
 public:
  // On the calling thread's current device.
  CudaEvent(const Failure& failure, Timing timing, Waiting waiting)
      : failure_(failure), timing_(timing), waiting_(waiting) {
    SO_CUDA(cudaEventCreateWithFlags(&event_, (timing == Timing::on ? cudaEventDefault : cudaEventDisableTiming) |
                                                  (waiting == Waiting::sleeps ? cudaEventBlockingSync : 0)));
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }

  void synchronize() override {
    if (!done()) {
      const TraceSpan span("wait for an event", TraceKind::wait);
      while (waiting_ == Waiting::yields && !done())
        for (int i = 0; i < yields; ++i) std::this_thread::yield();
      SO_CUDA(cudaEventSynchronize(event_));
    }
    if (records_.load() > 0) failure_.rethrow();
  }
  // A look takes the driver's locks, for which the thread that launches kernels competes, so one that found the work
  // done is remembered until the next record().
  bool done() const override {
    const std::uint64_t record = records_.load();
    if (reached_.load() == record) return true;
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;
    cuda_check(status, "cudaEventQuery");
    reached_.store(record);
    return true;
  }
  double seconds_since(const Event& earlier) const override {
    const auto* own = dynamic_cast<const CudaEvent*>(&earlier);
    SO_CHECK(own, "not a CUDA event");
    for (const CudaEvent* event : {own, this}) {
      SO_CHECK(event->timing_ == Timing::on, "an event made without timing");
      SO_CHECK(event->records_.load() > 0, "an event never recorded has no time");
      SO_CHECK(event->done(), "the work before an event has not run");
    }
    failure_.rethrow();
    float milliseconds = 0;
    SO_CUDA(cudaEventElapsedTime(&milliseconds, own->event_, event_));
    return 1e-3 * static_cast<double>(milliseconds);
  }

  cudaEvent_t get() const { return event_; }
  // After cudaEventRecord(): whoever looked before that has not seen the new record.
  void recorded() { records_.fetch_add(1); }

 private:
  static constexpr int yields = 16;  // between looks

  cudaEvent_t event_ = nullptr;
  const Failure& failure_;
  const Timing timing_;
  const Waiting waiting_;
  std::atomic<std::uint64_t> records_{0};          // made so far
  mutable std::atomic<std::uint64_t> reached_{0};  // the last of them whose work was seen to have run
};

CudaEvent& cuda(Event& event) {
  auto* own = dynamic_cast<CudaEvent*>(&event);
  SO_CHECK(own, "not a CUDA event");
  return *own;
}

// The streams that live now, for cuda_streams().
struct LiveStreams {
  std::mutex mutex;
  std::map<cudaStream_t, std::string> names;
};
LiveStreams& live_streams() {
  static auto* const instance = new LiveStreams;
  return *instance;
}

class CudaStream final : public Stream {
 public:
  // On `device`, which must be the calling thread's current one.
  CudaStream(Device& device, Failure& failure, WaitWords& words, HostPinning& pinning, std::string name)
      : device_(device), failure_(failure), words_(words), pinning_(pinning), name_(std::move(name)) {
    SO_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    const std::lock_guard lock(live_streams().mutex);
    live_streams().names[stream_] = name_;
  }
  // Another library's.
  CudaStream(Device& device, Failure& failure, WaitWords& words, HostPinning& pinning, std::string name,
             cudaStream_t stream)
      : device_(device),
        failure_(failure),
        words_(words),
        pinning_(pinning),
        name_(std::move(name)),
        owned_(false),
        stream_(stream) {}
  ~CudaStream() override {
    if (owned_ || thread_ || copies_) cudaStreamSynchronize(stream_);
    thread_.reset();
    if (!owned_) return;
    {
      const std::lock_guard lock(live_streams().mutex);
      live_streams().names.erase(stream_);
    }
    cudaStreamDestroy(stream_);
  }

  Device& device() const override { return device_; }
  std::string_view name() const override { return name_; }
  // For the calling thread to enqueue with.
  cudaStream_t get() const {
    device_.make_current();
    return stream_;
  }

  void record(Event& event) override {
    SO_CUDA(cudaEventRecord(cuda(event).get(), get()));
    cuda(event).recorded();
  }
  void wait(Event& event) override { SO_CUDA(cudaStreamWaitEvent(get(), cuda(event).get(), 0)); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes == 0) return;
    if (!pinning_.plain()) return copies().copy(to, from, bytes, verbs());
    SO_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, get()));
  }
  void zero(void* to, std::size_t bytes) override {
    if (bytes == 0) return;
    if (!pinning_.plain()) return copies().zero(to, bytes, verbs());
    SO_CUDA(cudaMemsetAsync(to, 0, bytes, get()));
  }
  void yield() override { enqueue_empty_kernel(get()); }
  void host(std::string_view name, std::function<void()> function) override {
    auto owned = std::make_unique<HostWork>(HostWork{failure_, std::string(name), std::move(function)});
    const auto run = [](void* data) { std::unique_ptr<HostWork>(static_cast<HostWork*>(data))->run(); };
    SO_CUDA(cudaLaunchHostFunc(get(), run, owned.get()));
    (void)owned.release();  // run() deletes it
  }
  void await(std::string_view name, std::function<void()> function) override {
    const cudaStream_t stream = get();
    if (!thread_) thread_ = std::make_unique<StreamThread>(words_);
    thread_->enqueue(stream, [work = HostWork{failure_, std::string(name), std::move(function)}] { work.run(); });
  }
  void synchronize() override {
    const TraceSpan span("synchronize", TraceKind::wait);
    SO_CUDA(cudaStreamSynchronize(stream_));
    failure_.rethrow();
  }

 private:
  PinnedCopies& copies() {
    if (!copies_) copies_ = std::make_unique<PinnedCopies>(pinning_);
    return *copies_;
  }
  PinnedCopies::Verbs verbs() {
    return {.copy = [stream = get()](
                        void* to, const void* from,
                        std::size_t bytes) { SO_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream)); },
            .zero = [stream = get()](void* to, std::size_t bytes) { SO_CUDA(cudaMemsetAsync(to, 0, bytes, stream)); },
            .host = [this](std::function<void()> work) { host("copy through a pinned block", std::move(work)); }};
  }

  struct HostWork {
    Failure& failure;
    std::string name;
    std::function<void()> function;
    void run() const {
      if (failure.failed()) return;
      delay_point();
      const TraceSpan span(name);
      try {
        function();
      } catch (...) {
        failure.set(std::current_exception());
      }
    }
  };

  Device& device_;
  Failure& failure_;
  WaitWords& words_;
  HostPinning& pinning_;
  const std::string name_;
  const bool owned_ = true;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<StreamThread> thread_;  // null until something is awaited
  std::unique_ptr<PinnedCopies> copies_;  // null while all host memory is pinned whole
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, PinningCalls pinning) : index_(index), pinning_(std::move(pinning)) {
    cudaDeviceProp p;
    SO_CUDA(cudaGetDeviceProperties(&p, index));
    name_ = p.name;
    shares_memory_ = gpu_shares_memory(index);
    properties_ = {index, p.multiProcessorCount, 10 * p.major + p.minor, static_cast<std::size_t>(p.l2CacheSize)};
  }

  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return name_; }
  int index() const override { return index_; }
  void make_current() override { use(); }
  bool backed() const override { return true; }
  const CudaProperties& properties() const { return properties_; }
  void fail_streams(std::exception_ptr error) { failure_.set(std::move(error)); }
  bool shares_memory() const override { return shares_memory_; }
  void* mapped(const Buffer& pinned) const override {
    use();
    return pinning_.mapped(pinned.data());
  }
  std::optional<OwnMemory> own_memory() const override {
    if (shares_memory_) return std::nullopt;  // CUDA would count the page cache as used
    OwnMemory memory;
    use();
    SO_CUDA(cudaMemGetInfo(&memory.free, &memory.total));
    return memory;
  }
  std::unique_ptr<Stream> create_stream(std::string name) override {
    use();
    words_.allocate();
    return std::make_unique<CudaStream>(*this, failure_, words_, pinning_, std::move(name));
  }
  std::unique_ptr<Stream> wrap_stream(void* handle, std::string name) override {
    use();
    words_.allocate();
    return std::make_unique<CudaStream>(*this, failure_, words_, pinning_, std::move(name),
                                        static_cast<cudaStream_t>(handle));
  }
  std::unique_ptr<Event> create_event(Timing timing, Waiting waiting) override {
    use();
    return std::make_unique<CudaEvent>(failure_, timing, waiting);
  }

 protected:
  void* allocate_memory(MemoryKind kind, std::size_t bytes, const Touch& touch) override {
    use();
    if (kind == MemoryKind::device) {
      void* data = nullptr;
      const cudaError_t status = cudaMalloc(&data, bytes);
      if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return nullptr;
      }
      cuda_check(status, "cudaMalloc");
      return data;
    }
    if (kind == MemoryKind::pinned) return pinning_.take(bytes, touch);
    void* data = map_host_pages(bytes);
    if (data && touch) touch(data, bytes);
    return data;
  }
  void free_memory(MemoryKind kind, void* data, std::size_t bytes) noexcept override {
    if (kind == MemoryKind::device) {
      cudaFree(data);
      return;
    }
    if (kind == MemoryKind::pinned) return pinning_.give_back(data);
    unmap_host_pages(data, bytes);
  }

 private:
  // Never remembered: another library in the process may change a thread's device.
  void use() const { SO_CUDA(cudaSetDevice(index_)); }

  const int index_;
  std::string name_;
  bool shares_memory_ = false;
  CudaProperties properties_;
  Failure failure_;
  WaitWords words_;
  HostPinning pinning_;
};

}  // namespace

std::vector<std::pair<cudaStream_t, std::string>> cuda_streams() {
  const std::lock_guard lock(live_streams().mutex);
  return {live_streams().names.begin(), live_streams().names.end()};
}

void fail_streams(Device& device, std::exception_ptr error) {
  auto* own = dynamic_cast<CudaDevice*>(&device);
  SO_CHECK(own, "device '{}' is not a CUDA device", device.name());
  own->fail_streams(std::move(error));
}

cudaStream_t cuda_stream(Stream& stream) {
  auto* own = dynamic_cast<CudaStream*>(&stream);
  SO_CHECK(own, "stream '{}' is not a CUDA stream", stream.name());
  return own->get();
}

const CudaProperties& cuda_properties(Device& device) {
  auto* own = dynamic_cast<CudaDevice*>(&device);
  SO_CHECK(own, "device '{}' is not a CUDA device", device.name());
  return own->properties();
}

namespace {

// Empty when the driver has device `index`, and this build has code for it.
std::string why_not(int index) {
  // Streams share the queues to the GPU's engines if there are fewer than streams, and one that waits then holds up
  // another. The driver reads this when it is first called.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    const auto version = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
    if (driver == 0) return "no NVIDIA driver is installed; install one, or use --device cpu";
    return fmt::format(
        "the NVIDIA driver supports CUDA {}, this build needs {}; update the driver, or use --device cpu",
        version(driver), version(runtime));
  }
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    return fmt::format("no usable NVIDIA GPU ({}); use --device cpu",
                       status == cudaSuccess ? "none is visible" : cudaGetErrorString(status));
  }
  if (index >= count) return fmt::format("there is no GPU {}: {} are visible", index, count);
  int major = 0, minor = 0;
  SO_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  SO_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
  if (10 * major + minor < lowest_capability)
    return fmt::format("GPU {} has compute capability {}.{}; {}.{} (Ampere) or later is needed; use --device cpu",
                       index, major, minor, lowest_capability / 10, lowest_capability % 10);
  return {};
}

}  // namespace

int cuda_runtime_version() {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0;
}

CudaSupport find_cuda(int index) {
  std::string reason = why_not(index);
  if (reason.empty()) find_cublas_lt(reason);
  if (reason.empty()) reason = why_no_cudnn();
  return {reason.empty(), std::move(reason)};
}

std::unique_ptr<Device> make_cuda_device(int index) { return make_cuda_device(index, cuda_pinning_calls()); }

std::unique_ptr<Device> make_cuda_device(int index, PinningCalls pinning) {
  if (const std::string reason = why_not(index); !reason.empty()) fail("{}", reason);
  return std::make_unique<CudaDevice>(index, std::move(pinning));
}

}  // namespace so
