#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <thread>

namespace so {
namespace {

TEST(ThreadPool, CoversEveryIndexOnce) {
  ThreadPool pool("test", {0, 1, 2}, false);
  for (std::int64_t count : {0, 1, 7, 100, 1000}) {
    std::vector<int> hits(static_cast<std::size_t>(count), 0);
    pool.parallel_for(count, 7, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
    });
    for (int hit : hits) EXPECT_EQ(hit, 1);
  }
}

TEST(ThreadPool, RethrowsTheFirstErrorAndStaysUsable) {
  ThreadPool pool("test", {0, 1}, false);
  EXPECT_THROW(pool.parallel_for(100, 1,
                                 [](std::int64_t i, std::int64_t) {
                                   if (i == 50) throw std::runtime_error("x");
                                 }),
               std::runtime_error);
  std::atomic<int> sum{0};
  pool.parallel_for(100, 1, [&](std::int64_t i, std::int64_t) { sum += static_cast<int>(i); });
  EXPECT_EQ(sum, 4950);
}

TEST(ThreadPool, TakesCallsFromSeveralThreads) {
  ThreadPool pool("test", {0, 1}, false);
  std::atomic<int> sum{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t)
    callers.emplace_back([&] {
      for (int r = 0; r < 200; ++r) pool.parallel_for(10, 1, [&](std::int64_t, std::int64_t) { ++sum; });
    });
  for (auto& c : callers) c.join();
  EXPECT_EQ(sum, 4 * 200 * 10);
}

TEST(ThreadPool, RunsEachWorkerOnItsOwnThread) {
  ThreadPool pool("test", {0, 1, 2}, false);
  std::vector<std::thread::id> first(3), second(3);
  pool.for_each_worker([&](int w) { first[static_cast<std::size_t>(w)] = std::this_thread::get_id(); });
  pool.for_each_worker([&](int w) { second[static_cast<std::size_t>(w)] = std::this_thread::get_id(); });
  EXPECT_EQ(first, second);
  EXPECT_NE(first[1], first[2]);
}

TEST(ThreadPool, FindsCpus) { EXPECT_GE(usable_cpus().size(), 1u); }

}  // namespace
}  // namespace so
