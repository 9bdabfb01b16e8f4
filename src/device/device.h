// Devices: memory with names, streams, events. One vocabulary for the CPU and for GPUs; device/cpu and device/cuda
// implement it, and device/dry implements it with no memory behind it, so that the program's real acquire and release
// code can be run to learn what it will need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "device/ledger.h"

namespace so {

class ThreadPool;
class Device;

enum class DeviceKind : std::uint8_t { cpu, cuda };
enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };  // automatic: a GPU if there is one
enum class Timing : bool { off, on };
// A thread that waits for an event spins, which is over soonest; or sleeps, which leaves its core to others; or looks
// every few microseconds and lets others have its core meanwhile, so that it stays on this core, too.
enum class Waiting : std::uint8_t { spins, sleeps, yields };

// A block of memory of one kind, booked in its device's ledger under a name. Move-only; freed on destruction.
// The device must outlive it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, MemoryKind kind, std::string name, void* data, std::size_t bytes);
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~Buffer();

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  MemoryKind kind() const { return kind_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  void swap(Buffer& other) noexcept;

  Device* device_ = nullptr;
  MemoryKind kind_ = MemoryKind::pageable;
  std::string name_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// A point in a stream's work. Reusable: record() moves it. Belongs to the device that made it.
class Event {
 public:
  virtual ~Event() = default;
  // Blocks the calling thread until the work recorded last has run. Returns at once if nothing was ever recorded.
  // Throws the first error of the stream that recorded it.
  virtual void synchronize() = 0;
  // True once that work has run (or failed); never blocks.
  virtual bool done() const = 0;
  // Seconds from the point `earlier` recorded last to the point this one did, by the device's clock. Both must
  // be of this device, made with Timing::on, recorded and done, else Bug. Throws the first error of a stream that
  // recorded them. A dry device answers 0.
  virtual double seconds_since(const Event& earlier) const = 0;
};

// An ordered queue of work. Calls enqueue and return; the work runs later, in order, on the device. Memory named in a
// call must stay valid until the work has run. One thread at a time may enqueue on a stream.
//
// Failure: the first exception that work throws poisons the stream: later work on it is dropped, events recorded
// on it carry the error, a stream that waits for such an event is poisoned too, and synchronize() throws the error. A
// GPU poisons all its streams at once, and kernels that are already enqueued still run.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device& device() const = 0;
  virtual std::string_view name() const = 0;

  virtual void record(Event& event) = 0;
  // Work enqueued after this call runs only after the work that `event` has recorded when this call is made.
  virtual void wait(Event& event) = 0;
  // Copies between any two kinds of memory; ranges must not overlap.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void zero(void* to, std::size_t bytes) = 0;
  // Call it between two copies: copies that other streams have enqueued by the time the first ends go before the
  // second. A GPU's copy engine serves ready copies in the order in which they were enqueued, so without this a queue
  // of copies blocks other streams like one long copy. It costs microseconds, and nothing where streams share no
  // engine.
  virtual void yield() = 0;
  // Runs a host function in stream order. It must not call into this device's streams.
  virtual void host(std::string_view name, std::function<void()> function) = 0;
  // Does the same for a function that may wait for other threads, and for the functions of other streams. A GPU runs
  // those of host() one at a time, so they must not; this takes a thread of the stream's own.
  virtual void await(std::string_view name, std::function<void()> function) = 0;
  // Blocks until everything enqueued so far has run. Throws the stream's first error.
  virtual void synchronize() = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::string name() const = 0;
  // Its number among the visible ones of its kind.
  virtual int index() const { return 0; }
  // Makes it the calling thread's device, in CUDA's sense: a thread's kernels, streams, events and memory are those of
  // the thread's current device, which is device 0 until the thread says otherwise. What streams, events and
  // allocations do here begins with this call, and so does what hands out a backend's own handle (cuda_stream(),
  // cpu()), so that any thread may use any device. Cheap and idempotent.
  virtual void make_current() {}
  // False for a dry device: addresses may be compared and offset, never dereferenced, and no work runs.
  virtual bool backed() const = 0;
  // Whether memory of kind `device` is the host's: on the CPU, and on a GPU that shares the processor's memory.
  virtual bool shares_memory() const { return kind() == DeviceKind::cpu; }
  // Memory of kind `device`, in bytes; nothing where that is host memory.
  struct OwnMemory {
    std::size_t total = 0;
    std::size_t free = 0;  // now; others' use counts
  };
  virtual std::optional<OwnMemory> own_memory() const { return std::nullopt; }

  // Limits on the bytes that are held at once, so that a wrong plan shows: host is pinned and pageable together, and
  // every kind where there is one memory.
  struct Limits {
    static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
    std::size_t device = none, host = none;
  };
  void limit_memory(const Limits& limits);

  virtual std::unique_ptr<Stream> create_stream(std::string name) = 0;
  // Returns a stream that another library has made on this device, by the backend's own handle (a cudaStream_t; null is
  // CUDA's default stream). It stays the library's, and must outlive the object. Bug where streams have no handles.
  virtual std::unique_ptr<Stream> wrap_stream(void* handle, std::string name);
  virtual std::unique_ptr<Event> create_event(Timing timing = Timing::off, Waiting waiting = Waiting::spins) = 0;

  // Throws Error naming the request and what is booked when there is no room, or not within the limits. Contents are
  // unspecified. Any thread.
  // Aligned to at least 4096 bytes. Zero bytes give an empty buffer. `touch` writes a whole block of host memory before
  // it is pinned (first touch): it places the pages, with as many threads as it likes, where the driver would touch
  // them slowly. It is not called on a dry device, whose memory has no pages.
  using Touch = std::function<void(void* data, std::size_t bytes)>;
  Buffer allocate(MemoryKind kind, std::size_t bytes, std::string name, const Touch& touch = {});
  // The address by which this device's kernels reach a pinned buffer; mostly the host's own. Null where the driver
  // could not map it: then only a stream's copy() and zero() reach it.
  virtual void* mapped(const Buffer& pinned) const { return pinned.data(); }

  Ledger& ledger() { return ledger_; }

 protected:
  friend class Buffer;
  // Null when there is no room.
  virtual void* allocate_memory(MemoryKind kind, std::size_t bytes, const Touch& touch) = 0;
  virtual void free_memory(MemoryKind kind, void* data, std::size_t bytes) noexcept = 0;

 private:
  Ledger ledger_;
  std::mutex mutex_;  // guards what follows, and keeps a request within it until it is booked
  Limits limits_;
};

// The CPU as a device: a stream is a worker thread, and its work spreads over `pool`, which must outlive the device.
// There is one CPU, so `index` means nothing but to the rule of make_current(), which the CPU's streams hold too: work
// that is enqueued by a thread whose current device is another is a Bug.
std::unique_ptr<Device> make_cpu_device(ThreadPool& pool, int index = 0);

// An NVIDIA GPU, by its number among the visible ones. A build without CUDA, a machine without a driver or such a
// device, a driver too old for this build, or a GPU that it has no code for: Error, one sentence with the fix.
std::unique_ptr<Device> make_cuda_device(int index);
// Whether there is such a device, and the libraries with which models compute on it (cuBLASLt, cuDNN), which stay
// loaded; else `reason` is the sentence of what is missing.
struct CudaSupport {
  bool usable = false;
  std::string reason;
};
CudaSupport find_cuda(int index = 0);

// A device of the given kind with no memory behind it and streams that drop their work.
std::unique_ptr<Device> make_dry_device(DeviceKind kind);
std::unique_ptr<Device> make_dry_device(DeviceKind kind, bool shares_memory);

}  // namespace so
