#include "device/trace.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>

#include "base/error.h"
#include "device/gpu_trace.h"

namespace so {
namespace {

std::atomic<bool> active{false};
std::atomic<std::uint64_t> next_lane{1};

// The active session's records so far.
struct Recorder {
  std::mutex mutex;
  std::int64_t begin = 0;
  Trace trace;
  std::map<std::uint64_t, int> tracks;  // lane -> track

  int track_of(std::uint64_t lane, const std::string& name, bool stream) {
    const auto [place, added] = tracks.try_emplace(lane, static_cast<int>(trace.tracks.size()));
    if (added) trace.tracks.push_back({name, stream});
    return place->second;
  }
  void add(std::uint64_t lane, const std::string& name, bool stream, TraceActivity activity) {
    const std::lock_guard lock(mutex);
    if (!active.load(std::memory_order_relaxed) || activity.begin < begin) return;
    activity.track = track_of(lane, name, stream);
    trace.activities.push_back(std::move(activity));
  }
  void add(TraceBucketState state) {
    const std::lock_guard lock(mutex);
    if (!active.load(std::memory_order_relaxed) || state.end <= begin) return;
    state.begin = std::max(state.begin, begin);
    trace.bucket_states.push_back(std::move(state));
  }
};

// Never destroyed: threads may outlive static objects.
Recorder& recorder() {
  static auto* const instance = new Recorder;
  return *instance;
}

std::string name_of_this_thread() {
  if (::syscall(SYS_gettid) == ::getpid()) return "main";
  char name[16] = "";
  return pthread_getname_np(pthread_self(), name, sizeof name) == 0 && name[0] != 0 ? name : "thread";
}

}  // namespace

std::string_view name_of(TraceKind kind) {
  switch (kind) {
    case TraceKind::work:
      return "work";
    case TraceKind::copy:
      return "copy";
    case TraceKind::fill:
      return "fill";
    case TraceKind::host:
      return "host";
    case TraceKind::wait:
      return "wait";
  }
  SO_BUG("trace kind {}", static_cast<int>(kind));
}

std::string_view name_of(CopyDirection direction) {
  switch (direction) {
    case CopyDirection::none:
      return "none";
    case CopyDirection::host_to_device:
      return "host to device";
    case CopyDirection::device_to_host:
      return "device to host";
    case CopyDirection::device_to_device:
      return "device to device";
    case CopyDirection::host_to_host:
      return "host to host";
  }
  SO_BUG("copy direction {}", static_cast<int>(direction));
}

bool tracing() { return active.load(std::memory_order_acquire); }

std::int64_t trace_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void trace_span(std::string_view name, std::int64_t begin, std::int64_t end, TraceKind kind) noexcept {
  if (!tracing()) return;
  try {
    thread_local const TraceLane lane(name_of_this_thread());
    TraceActivity activity;
    activity.kind = kind;
    activity.name = name;
    activity.begin = begin;
    activity.end = end;
    lane.record(std::move(activity), false);
  } catch (...) {  // out of memory: the trace lacks this span, and nothing else is harmed
  }
}

TraceLane::TraceLane(std::string name) : name_(std::move(name)), number_(next_lane.fetch_add(1)) {}

void TraceLane::record(TraceActivity activity, bool stream) const noexcept {
  try {
    recorder().add(number_, name_, stream, std::move(activity));
  } catch (...) {
  }
}

void trace_bucket_state(int bucket, std::string_view state, std::int64_t begin, std::int64_t end) noexcept {
  if (!tracing()) return;
  try {
    recorder().add({bucket, std::string(state), begin, end});
  } catch (...) {  // out of memory: the trace lacks this one
  }
}

struct TraceSession::Gpu {
  std::unique_ptr<GpuTrace> trace;
};

TraceSession::TraceSession(Device& device) : device_(device), gpu_(std::make_unique<Gpu>()) {
  SO_CHECK(!active.load(), "a trace session is active already");
  if (device_.kind() == DeviceKind::cuda && device_.backed()) {
    std::string remark;
    gpu_->trace = start_gpu_trace(remark);
    if (!gpu_->trace) remarks_.push_back(std::move(remark));
  }
  Recorder& r = recorder();
  const std::lock_guard lock(r.mutex);
  r.trace = {};
  r.tracks.clear();
  r.begin = trace_now();
  active.store(true, std::memory_order_release);
}

TraceSession::~TraceSession() {
  if (active_) try {
      stop();
    } catch (...) {  // nobody wants the trace any more
    }
}

Trace TraceSession::stop() {
  SO_CHECK(active_, "a trace session stopped twice");
  active_ = false;
  Recorder& r = recorder();
  std::int64_t end = 0;
  Trace trace;
  std::int64_t begin = 0;
  {
    const std::lock_guard lock(r.mutex);
    active.store(false, std::memory_order_release);
    end = trace_now();
    begin = r.begin;
    trace = std::move(r.trace);
    r.trace = {};
  }
  trace.remarks = std::move(remarks_);
  if (gpu_->trace) {
    std::map<std::string, int> tracks;
    gpu_->trace->stop(
        [&](const std::string& stream, TraceActivity activity) {
          if (activity.begin < begin || activity.end > end) return;
          const auto [place, added] = tracks.try_emplace(stream, static_cast<int>(trace.tracks.size()));
          if (added) trace.tracks.push_back({stream, true});
          activity.track = place->second;
          trace.activities.push_back(std::move(activity));
        },
        trace.remarks);
    gpu_->trace.reset();
  }
  const auto in_session = [begin](auto& spans) {
    for (auto& span : spans) span.begin -= begin, span.end -= begin;
    std::stable_sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  };
  in_session(trace.activities);
  in_session(trace.bucket_states);
  trace.duration = end - begin;
  return trace;
}

}  // namespace so
