// Places where threads meet, and where a test may hold a thread up to see orders of events that a quiet machine never
// shows: before the work of a stream, before and after a piece of a job.
#pragma once

#include <atomic>

namespace so {

// Called by any thread at every delay_point(), so it may touch only what is safe for that; null, as at first, for none.
// It may throw where a job may fail: on workers of a pool and their callers, but not on a stream's own thread.
// For tests (tests/support/jitter.h).
using DelayHook = void (*)();
inline std::atomic<DelayHook> delay_hook{nullptr};

// Costs one atomic load without a hook.
inline void delay_point() {
  if (const DelayHook hook = delay_hook.load(std::memory_order_acquire)) hook();
}

}  // namespace so
