// Recording what a program does, and when: work on streams (kernels, copies, waits) and spans of host threads.
//
// One session at a time, for the whole process. While none is active, recording costs one atomic load. All of it is
// thread-safe. Times are nanoseconds of one steady clock; GPU times are brought to it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace so {

enum class TraceKind : std::uint8_t {
  work,  // a kernel, or an operation on a CPU stream
  copy,
  fill,
  host,  // a span of a host thread, or a host function on a stream
  wait,  // a thread or a stream waits for other work
};
std::string_view name_of(TraceKind kind);

enum class CopyDirection : std::uint8_t { none, host_to_device, device_to_host, device_to_device, host_to_host };
std::string_view name_of(CopyDirection direction);

// The category of a piece of work. Whoever enqueues work on a CPU stream gives it; a GPU's kernels are
// known by their names alone (device/trace_summary.h).
enum class WorkCategory : std::uint8_t { by_name, matrix_products, attention, memory_bound };

struct TraceActivity {
  int track = 0;  // index into Trace::tracks
  TraceKind kind = TraceKind::work;
  std::string name;
  std::int64_t begin = 0, end = 0;  // ns since the session began
  std::uint64_t bytes = 0;          // of a copy or fill
  CopyDirection direction = CopyDirection::none;
  WorkCategory category = WorkCategory::by_name;
};

struct TraceTrack {
  std::string name;
  bool stream = false;  // a device's stream, whose activities follow one another; else a host thread, whose spans nest
};

// A state that a bucket (a run of parameters that moves as one) was in for a while. It is in one state at a time.
struct TraceBucketState {
  int bucket = 0;
  std::string state;
  std::int64_t begin = 0, end = 0;  // ns since the session began
};

struct Trace {
  std::vector<TraceTrack> tracks;
  std::vector<TraceActivity> activities;        // by begin
  std::vector<TraceBucketState> bucket_states;  // by begin
  std::int64_t duration = 0;                    // ns, of the session
  std::vector<std::string> remarks;             // what is missing, and why
};

// Records from construction to stop() or destruction. Bug if one is active.
class TraceSession {
 public:
  // On a GPU, kernels and copies are recorded through CUPTI; where that cannot be had, a remark says why and the rest
  // is recorded. Starting may take a second, so it should happen before what is to be seen; synchronise the streams
  // before start and stop.
  explicit TraceSession(Device& device);
  ~TraceSession();
  Trace stop();

 private:
  struct Gpu;
  Device& device_;
  std::unique_ptr<Gpu> gpu_;
  std::vector<std::string> remarks_;
  bool active_ = true;
};

bool tracing();            // whether a session is active
std::int64_t trace_now();  // ns of the trace's clock

// Records a span of the calling thread that has ended; those of a thread nest or follow one another. `begin` and `end`
// as trace_now() gives them. Nothing without a session.
void trace_span(std::string_view name, std::int64_t begin, std::int64_t end, TraceKind kind = TraceKind::host) noexcept;

// A span of the calling thread, from construction to destruction. `name` must live as long.
class TraceSpan {
 public:
  explicit TraceSpan(std::string_view name, TraceKind kind = TraceKind::host)
      : name_(name), kind_(kind), begin_(tracing() ? trace_now() : -1) {}
  ~TraceSpan() {
    if (begin_ >= 0) trace_span(name_, begin_, trace_now(), kind_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  std::string_view name_;
  TraceKind kind_;
  std::int64_t begin_;
};

// Records that `bucket` was in `state` from `begin` to `end`, as trace_now() gives them. What began before the session
// is recorded from its start, so 0 will do for a begin that nobody asked the clock for. Nothing without a session.
void trace_bucket_state(int bucket, std::string_view state, std::int64_t begin, std::int64_t end) noexcept;

// ---- For devices ----

// Something whose activities appear on a track of their own. Its number is never used again.
class TraceLane {
 public:
  explicit TraceLane(std::string name);
  const std::string& name() const { return name_; }
  // Adds an activity of this stream (or host thread); begin and end as trace_now() gives them. Dropped if no session is
  // active, or if it began before the session did.
  void record(TraceActivity activity, bool stream = true) const noexcept;

 private:
  std::string name_;
  std::uint64_t number_;
};

}  // namespace so
