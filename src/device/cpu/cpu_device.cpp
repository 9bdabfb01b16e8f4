#include "device/cpu/cpu_device.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstring>

#include "base/delay_point.h"
#include "base/error.h"
#include "device/cpu/queue_limit.h"
#include "device/host_pages.h"

namespace so {
namespace {

// The point that a recorded event stands for. Every record() makes a new one, so that a wait keeps the point it was
// made for even if the event is recorded again meanwhile.
struct Point {
  std::mutex mutex;
  std::condition_variable reached_changed;
  bool reached = false;
  std::chrono::steady_clock::time_point when;
  std::exception_ptr error;

  void reach(std::exception_ptr e) {
    {
      std::lock_guard lock(mutex);
      reached = true;
      when = std::chrono::steady_clock::now();
      error = std::move(e);
    }
    reached_changed.notify_all();
  }
  std::exception_ptr wait() {
    std::unique_lock lock(mutex);
    reached_changed.wait(lock, [&] { return reached; });
    return error;
  }
};

class CpuEvent final : public Event {
 public:
  explicit CpuEvent(Timing timing) : timing_(timing) {}
  void synchronize() override {
    const TraceSpan span("wait for an event", TraceKind::wait);
    if (const auto point = current())
      if (const auto error = point->wait()) std::rethrow_exception(error);
  }
  bool done() const override {
    const auto point = current();
    if (!point) return true;
    std::lock_guard lock(point->mutex);
    return point->reached;
  }
  double seconds_since(const Event& earlier) const override;
  std::shared_ptr<Point> renew() {
    std::lock_guard lock(mutex_);
    return point_ = std::make_shared<Point>();
  }
  std::shared_ptr<Point> current() const {
    std::lock_guard lock(mutex_);
    return point_;
  }

 private:
  std::chrono::steady_clock::time_point when() const {
    SO_CHECK(timing_ == Timing::on, "an event made without timing");
    const auto point = current();
    SO_CHECK(point, "an event never recorded has no time");
    std::lock_guard lock(point->mutex);
    SO_CHECK(point->reached, "the work before an event has not run");
    if (point->error) std::rethrow_exception(point->error);
    return point->when;
  }

  const Timing timing_;
  mutable std::mutex mutex_;
  std::shared_ptr<Point> point_;
};

CpuEvent& cpu_event(Event& event) {
  auto* own = dynamic_cast<CpuEvent*>(&event);
  SO_CHECK(own, "an event of another device");
  return *own;
}

double CpuEvent::seconds_since(const Event& earlier) const {
  const auto* own = dynamic_cast<const CpuEvent*>(&earlier);
  SO_CHECK(own, "an event of another device");
  return std::chrono::duration<double>(when() - own->when()).count();
}

// Pieces of this size keep both cores busy on a large copy without cutting small ones.
constexpr std::int64_t copy_grain = 1 << 20;

// The index of the thread's current device.
thread_local int current_index = 0;

class CpuDevice final : public Device {
 public:
  CpuDevice(ThreadPool& pool, int index) : pool_(pool), index_(index) {}
  DeviceKind kind() const override { return DeviceKind::cpu; }
  int index() const override { return index_; }
  void make_current() override { current_index = index_; }
  std::string name() const override {
    return fmt::format("CPU, {} thread{}", pool_.size(), pool_.size() == 1 ? "" : "s");
  }
  bool backed() const override { return true; }
  std::unique_ptr<Stream> create_stream(std::string name) override {
    return std::make_unique<CpuStream>(*this, pool_, std::move(name));
  }
  std::unique_ptr<Event> create_event(Timing timing, Waiting) override { return std::make_unique<CpuEvent>(timing); }

 protected:
  void* allocate_memory(MemoryKind, std::size_t bytes, const Touch& touch) override {
    void* data = map_host_pages(bytes);
    if (data && touch) touch(data, bytes);
    return data;
  }
  void free_memory(MemoryKind, void* data, std::size_t bytes) noexcept override { unmap_host_pages(data, bytes); }

 private:
  ThreadPool& pool_;
  const int index_;
};

}  // namespace

struct CpuStream::Work {
  std::function<void()> function;
  bool even_if_poisoned = false;
  // For a trace. Without a name it does not appear.
  std::string name;
  TraceKind kind = TraceKind::work;
  std::uint64_t bytes = 0;
  WorkCategory category = WorkCategory::by_name;
};

struct CpuStream::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::condition_variable room;  // half of the limit is free
  std::deque<Work> work;
  bool busy = false, stop = false;
  std::exception_ptr error;
};

CpuStream::CpuStream(Device& device, ThreadPool& pool, std::string name)
    : device_(device), pool_(pool), lane_(std::move(name)), queue_(std::make_unique<Queue>()) {
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), fmt::format("{:.15}", lane_.name()).c_str());
}

CpuStream::~CpuStream() {
  {
    std::lock_guard lock(queue_->mutex);
    queue_->stop = true;
  }
  queue_->changed.notify_all();
  thread_.join();
}

void CpuStream::run() {
  Queue& q = *queue_;
  std::unique_lock lock(q.mutex);
  for (;;) {
    q.changed.wait(lock, [&] { return q.stop || !q.work.empty(); });
    if (q.work.empty()) return;
    Work work = std::move(q.work.front());
    q.work.pop_front();
    if (q.work.size() == cpu_queue_limit / 2) q.room.notify_all();
    const bool drop = q.error && !work.even_if_poisoned;
    q.busy = true;
    lock.unlock();
    delay_point();
    std::exception_ptr error;
    TraceActivity activity;
    const bool traced = tracing() && !drop && !work.name.empty();
    if (traced) activity.begin = trace_now();
    try {
      if (!drop) work.function();
    } catch (...) {
      error = std::current_exception();
    }
    if (traced) {
      activity.end = trace_now();
      activity.kind = work.kind;
      activity.name = std::move(work.name);
      activity.bytes = work.bytes;
      activity.category = work.category;
      if (work.kind == TraceKind::copy) activity.direction = CopyDirection::host_to_host;
      lane_.record(std::move(activity));
    }
    work.function = nullptr;  // what it keeps alive goes before anyone hears that it is done
    lock.lock();
    q.busy = false;
    if (error && !q.error) q.error = error;
    if (q.work.empty()) q.changed.notify_all();
  }
}

void CpuStream::enter(Work work) {
  device_.make_current();
  push(std::move(work));
}

void CpuStream::push(Work work) {
  SO_CHECK(current_index == device_.index(), "stream '{}' of device {} is used by a thread whose device is {}", name(),
           device_.index(), current_index);
  {
    std::unique_lock lock(queue_->mutex);
    // The work that the stream waits for was enqueued before and goes on. Its own thread must never wait for it.
    if (queue_->work.size() >= cpu_queue_limit && std::this_thread::get_id() != thread_.get_id())
      queue_->room.wait(lock, [&] { return queue_->work.size() <= cpu_queue_limit / 2; });
    queue_->work.push_back(std::move(work));
  }
  queue_->changed.notify_all();
}

void CpuStream::enqueue(std::string_view name, WorkCategory category, std::function<void()> function) {
  push({std::move(function), false, std::string(name), TraceKind::work, 0, category});
}

void CpuStream::record(Event& event) {
  enter({[queue = queue_.get(), point = cpu_event(event).renew()] {
           std::exception_ptr error;
           {
             std::lock_guard lock(queue->mutex);
             error = queue->error;
           }
           point->reach(error);
         },
         true});
}

void CpuStream::wait(Event& event) {
  if (auto point = cpu_event(event).current())
    enter({[point = std::move(point)] {
             if (const auto error = point->wait()) std::rethrow_exception(error);
           },
           true, "wait", TraceKind::wait});
}

void CpuStream::copy(void* to, const void* from, std::size_t bytes) {
  enter({[this, to, from, bytes] {
           pool_.parallel_for(static_cast<std::int64_t>(bytes), copy_grain, [&](std::int64_t begin, std::int64_t end) {
             std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                         static_cast<std::size_t>(end - begin));
           });
         },
         false, "copy", TraceKind::copy, bytes});
}

void CpuStream::zero(void* to, std::size_t bytes) {
  enter({[this, to, bytes] {
           pool_.parallel_for(static_cast<std::int64_t>(bytes), copy_grain, [&](std::int64_t begin, std::int64_t end) {
             std::memset(static_cast<std::byte*>(to) + begin, 0, static_cast<std::size_t>(end - begin));
           });
         },
         false, "zero", TraceKind::fill, bytes});
}

void CpuStream::host(std::string_view name, std::function<void()> function) {
  enter({std::move(function), false, std::string(name), TraceKind::host});
}

void CpuStream::synchronize() {
  const TraceSpan span("synchronize", TraceKind::wait);
  std::unique_lock lock(queue_->mutex);
  queue_->changed.wait(lock, [&] { return queue_->work.empty() && !queue_->busy; });
  if (queue_->error) std::rethrow_exception(queue_->error);
}

std::unique_ptr<Device> make_cpu_device(ThreadPool& pool, int index) {
  return std::make_unique<CpuDevice>(pool, index);
}

}  // namespace so
