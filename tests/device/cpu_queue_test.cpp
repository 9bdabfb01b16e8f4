#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/thread_pool.h"
#include "device/cpu/queue_limit.h"
#include "device/device.h"

namespace so {
namespace {

// Nobody gets further ahead of a stream than the limit, and all work is done in the end.
TEST(CpuQueue, IsBounded) {
  ThreadPool pool("test", {}, false);
  const auto device = make_cpu_device(pool);
  const auto stream = device->create_stream("compute");
  constexpr std::int64_t limit = cpu_queue_limit, count = 3 * limit;
  std::atomic<std::int64_t> enqueued = 0, done = 0;
  // The stream begins when the queue is as good as full. It must not wait for the last place: while this work is still
  // in the queue itself, the thread that enqueues stops one place before the limit.
  stream->host("hold", [&] {
    while (enqueued < limit - 2) std::this_thread::yield();
  });
  std::int64_t furthest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    stream->host("work", [&] { ++done; });
    ++enqueued;
    furthest = std::max(furthest, enqueued - done);
  }
  stream->synchronize();
  EXPECT_EQ(done, count);
  EXPECT_LE(furthest, limit + 2);  // with the work that runs, and the work that is done but not yet counted
}

// A stream's own thread is never made to wait for it.
TEST(CpuQueue, LetsWorkEnqueueMoreWork) {
  ThreadPool pool("test", {}, false);
  const auto device = make_cpu_device(pool);
  const auto stream = device->create_stream("compute");
  std::atomic<std::int64_t> done = 0;
  constexpr std::int64_t count = cpu_queue_limit + 10;
  stream->host("all", [&] {
    for (std::int64_t i = 0; i < count; ++i) stream->host("work", [&] { ++done; });
  });
  stream->synchronize();
  EXPECT_EQ(done, count);
}

}  // namespace
}  // namespace so
