#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <numeric>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "support/sanitized.h"

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

TEST(ThreadPool, TheCallerDoesSomethingElseOnceBeforeItTakesPart) {
  for (const int threads : {1, 3}) {
    std::vector<int> cpus(static_cast<std::size_t>(threads));
    std::iota(cpus.begin(), cpus.end(), 0);
    ThreadPool pool("test", cpus, false);
    const std::thread::id caller = std::this_thread::get_id();
    int calls = 0;
    std::atomic<int> hits{0}, early{0};
    const auto body = [&](std::int64_t begin, std::int64_t end) {
      hits += static_cast<int>(end - begin);
      if (std::this_thread::get_id() == caller && calls == 0) ++early;
    };
    const auto meanwhile = [&] {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      ++calls;
    };
    pool.parallel_for(100, 7, body, meanwhile);
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(hits, 100);
    EXPECT_EQ(early, 0);
    // It belongs to that job alone.
    pool.parallel_for(100, 7, body);
    pool.for_each_worker([](int) {});
    EXPECT_EQ(calls, 1);
    // One piece, or none.
    pool.parallel_for(5, 7, body, meanwhile);
    EXPECT_EQ(calls, 2);
    pool.parallel_for(0, 7, body, meanwhile);
    EXPECT_EQ(calls, 2);
  }
}

TEST(ThreadPool, WhatTheCallerThrowsMeanwhileArrivesWhenTheOthersHaveEnded) {
  ThreadPool pool("test", {0, 1}, false);
  for (int round = 0; round < 100; ++round) {
    std::vector<int> hits(64, 0);  // gone when the call has returned
    EXPECT_THROW(pool.parallel_for(
                     64, 1, [&](std::int64_t begin, std::int64_t) { ++hits[static_cast<std::size_t>(begin)]; },
                     [] { throw std::runtime_error("x"); }),
                 std::runtime_error);
  }
  std::atomic<int> sum{0};
  pool.parallel_for(100, 1, [&](std::int64_t i, std::int64_t) { sum += static_cast<int>(i); });
  EXPECT_EQ(sum, 4950);
}

// The same for a pool that sleeps between jobs, one that spins a while, and one that spins long.
class ThreadPoolSpin : public ::testing::TestWithParam<std::chrono::microseconds> {
 protected:
  ThreadPool pool{"test", {0, 1}, false, GetParam()};
};

// Jobs in quick succession, some too short for the workers to come in time, each with plain data of its own: whoever
// came late and took part in a job that is over would be seen here, and by the thread sanitizer.
TEST_P(ThreadPoolSpin, JobsFollowOneAnother) {
  for (std::int64_t round = 0; round < 3000; ++round) {
    const std::int64_t count = 2 + round % 5;
    std::vector<std::int64_t> result(static_cast<std::size_t>(count), -1);
    pool.parallel_for(count, 1, [&result, round](std::int64_t begin, std::int64_t) {
      result[static_cast<std::size_t>(begin)] = round + begin;
    });
    for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(result[static_cast<std::size_t>(i)], round + i);
    if (round % 3 == 0) {
      std::vector<int> workers(static_cast<std::size_t>(pool.size()), 0);
      pool.for_each_worker([&](int worker) { ++workers[static_cast<std::size_t>(worker)]; });
      ASSERT_EQ(workers, (std::vector<int>{1, 1}));
    }
    if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the workers fall asleep
  }
}

// The caller waits asleep for a worker that takes long, and a worker for a job that does not come.
TEST_P(ThreadPoolSpin, SleepsWhereAWaitIsLong) {
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> done{0};
    pool.for_each_worker([&](int worker) {
      if (worker == 1) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      ++done;
    });
    EXPECT_EQ(done, 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
}

TEST_P(ThreadPoolSpin, AnErrorOfAnyWorkerArrives) {
  for (int round = 0; round < 200; ++round)
    for (int failing : {0, 1})
      EXPECT_THROW(pool.for_each_worker([&](int worker) {
        if (worker == failing) throw std::runtime_error("x");
      }),
                   std::runtime_error);
  pool.for_each_worker([](int) {});  // the error is gone
}

TEST_P(ThreadPoolSpin, TakesCallsFromSeveralThreads) {
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

INSTANTIATE_TEST_SUITE_P(Spins, ThreadPoolSpin,
                         ::testing::Values(ThreadPool::no_spin, ThreadPool::long_spin, std::chrono::microseconds(2000)),
                         [](const auto& test) { return std::to_string(test.param.count()) + "us"; });

std::vector<int> affinity() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  sched_getaffinity(0, sizeof mask, &mask);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
  return cpus;
}

TEST(ThreadPool, PinsItsWorkersAndOnRequestItsCaller) {
  const std::vector<int> cpus = usable_cpus(), before = affinity();
  ThreadPool pinned("test", cpus, true), loose("test", cpus, false);
  std::vector<std::vector<int>> seen(cpus.size());
  std::thread([&] {
    loose.pin_caller();
    EXPECT_EQ(affinity(), before);
    pinned.pin_caller();
    pinned.for_each_worker([&](int worker) { seen[static_cast<std::size_t>(worker)] = affinity(); });
  }).join();
  for (std::size_t i = 0; i < cpus.size(); ++i) EXPECT_EQ(seen[i], std::vector<int>{cpus[i]});
  EXPECT_EQ(affinity(), before) << "another thread was pinned";
}

TEST(ThreadPool, KeepsAThreadOffItsCpusWhereOthersAreLeft) {
  const std::vector<int> all = affinity();
  std::thread([&] {
    ThreadPool("test", all, true).keep_caller_off();
    EXPECT_EQ(affinity(), all) << "no others are left";
    ThreadPool("test", {all.back()}, false).keep_caller_off();
    EXPECT_EQ(affinity(), all) << "its threads have no CPU of their own";
    ThreadPool("test", {all.back()}, true).keep_caller_off();
    EXPECT_EQ(affinity(), all.size() == 1 ? all : std::vector<int>(all.begin(), all.end() - 1));
  }).join();
  EXPECT_EQ(affinity(), all);
}

TEST(ThreadPool, FindsCpus) {
  std::vector<int> cpus = usable_cpus();
  std::sort(cpus.begin(), cpus.end());
  EXPECT_EQ(cpus, affinity());
  for (const std::vector<int>& core : usable_cores()) EXPECT_FALSE(core.empty());
}

TEST(ThreadPool, HostWorkersLeaveACoreToTheThreadThatFeedsAGpu) {
  using Cpus = std::vector<int>;
  const std::vector<Cpus> four = {{0}, {1}, {2}, {3}}, three = {{0}, {1}, {2}},
                          twins = {{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  EXPECT_EQ(host_worker_cpus(four, 0), (Cpus{1, 2, 3}));
  EXPECT_EQ(host_worker_cpus(four, 2), (Cpus{1, 2}));
  EXPECT_EQ(host_worker_cpus(four, 4), (Cpus{1, 2, 3, 0})) << "asked for";
  EXPECT_EQ(host_worker_cpus(four, 9), (Cpus{1, 2, 3, 0}));
  EXPECT_EQ(host_worker_cpus(three, 0), (Cpus{0, 1, 2})) << "too few to leave one";
  EXPECT_EQ(host_worker_cpus(three, 1), (Cpus{0}));
  EXPECT_EQ(host_worker_cpus(twins, 0), (Cpus{1, 2, 3, 5, 6, 7})) << "the whole core";
  EXPECT_EQ(host_worker_cpus(twins, 8), (Cpus{1, 2, 3, 5, 6, 7, 0, 4}));
}

// Half a pool ends its threads and reports: under std::terminate nobody would learn of the limit.
TEST(ThreadPool, AThreadThatCannotBeMadeIsAnError) {
  if (test::sanitized) GTEST_SKIP() << "a sanitizer needs more address space than the limit leaves";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto with_little_address_space = [] {
    const rlimit limit{std::uint64_t{1} << 30, std::uint64_t{1} << 30};  // so many stacks of any size are more
    ::setrlimit(RLIMIT_AS, &limit);
    try {
      const ThreadPool pool("test", std::vector<int>(60000, 0), false);
    } catch (const std::system_error&) {
      std::_Exit(0);
    } catch (const std::bad_alloc&) {
      std::_Exit(0);
    }
    std::_Exit(3);
  };
  EXPECT_EXIT(with_little_address_space(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace so
