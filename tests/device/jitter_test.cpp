#include "support/jitter.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "device/device.h"

namespace so {
namespace {

// Three streams hand a value around in a ring by events alone, each adding to it on the pool; nothing but the events
// orders them, so the thread sanitizer and the sum would see one that does not hold.
std::int64_t hand_around(Device& device, ThreadPool& host, int rounds) {
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Event>> events;
  for (int i = 0; i < 3; ++i) {
    streams.push_back(device.create_stream("s"));
    events.push_back(device.create_event());
  }
  std::vector<std::int64_t> values(64, 0);
  for (int round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < 3; ++i) {
      streams[i]->wait(*events[(i + 2) % 3]);
      streams[i]->host("add", [&values, &host, i] {
        host.parallel_for(64, 8, [&](std::int64_t begin, std::int64_t end) {
          for (auto k = static_cast<std::size_t>(begin); k < static_cast<std::size_t>(end); ++k)
            values[k] = 3 * values[k] % 1000003 + static_cast<std::int64_t>(i + k);
        });
      });
      streams[i]->record(*events[i]);
    }
  for (auto& stream : streams) stream->synchronize();
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

TEST(Jitter, DelaysStreamsAndWorkersAndChangesNothing) {
  ThreadPool pool("test", {0, 1}, false), host("host", {0, 1}, false);
  const auto device = make_cpu_device(pool);
  const std::int64_t passed = test::Jitter::passed();
  const std::int64_t expected = hand_around(*device, host, 50);
  EXPECT_EQ(test::Jitter::passed(), passed) << "none lives";
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const test::Jitter jitter(seed);
    const std::int64_t before = test::Jitter::passed(), slept = test::Jitter::slept();
    EXPECT_EQ(hand_around(*device, host, 50), expected) << seed;
    // A wait, a host function and an event on each of three streams, and the caller's part of a job.
    EXPECT_GE(test::Jitter::passed() - before, 50 * 3 * 4 - 1);  // the first wait has no event to wait for
    EXPECT_GT(test::Jitter::slept(), slept);
  }
}

// A pool of two, held up at every turn, still runs every index once and ends every job.
TEST(Jitter, ThePoolHolds) {
  for (const auto spin : {ThreadPool::no_spin, ThreadPool::long_spin}) {
    const test::Jitter jitter(7);
    ThreadPool pool("test", {0, 1}, false, spin);
    for (int round = 0; round < 300; ++round) {
      std::vector<int> hits(10, 0);
      pool.parallel_for(10, 3, [&](std::int64_t begin, std::int64_t end) {
        for (auto i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
      });
      ASSERT_EQ(hits, std::vector<int>(10, 1));
    }
    EXPECT_THROW(pool.parallel_for(10, 3, [](std::int64_t, std::int64_t) { fail("x"); }), Error);
  }
}

}  // namespace
}  // namespace so
