#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "base/cpus.h"
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

// Counts how often the body runs for each index.
class Hits {
 public:
  explicit Hits(std::int64_t count) : hits_(static_cast<std::size_t>(count)) {}
  ParallelWork work(std::int64_t grain) {
    return {static_cast<std::int64_t>(hits_.size()), grain, [this](std::int64_t begin, std::int64_t end) {
              for (auto i = begin; i < end; ++i) ++hits_[static_cast<std::size_t>(i)];
            }};
  }
  bool all_once() const {
    return std::all_of(hits_.begin(), hits_.end(), [](int hits) { return hits == 1; });
  }

 private:
  std::vector<int> hits_;
};

TEST(ParallelWork, ManyAreOne) {
  ThreadPool pool("test", {0, 1, 2}, false);
  for (const int parts : {0, 1, 5}) {
    std::vector<Hits> hits;
    for (int i = 0; i < parts; ++i) hits.emplace_back(i * 10);
    std::vector<ParallelWork> work;
    for (int i = 0; i < parts; ++i) work.push_back(hits[static_cast<std::size_t>(i)].work(1 + i * 2));
    pool.run(all_of(std::move(work)));
    for (const Hits& h : hits) EXPECT_TRUE(h.all_once()) << parts;
  }
}

// A pool without threads of its own shows the order in which pieces are taken.
TEST(ThreadPool, JobsThatBeganFirstComeFirst) {
  ThreadPool pool("test", {}, false);
  std::vector<std::int64_t> order;
  const auto job = [&](std::int64_t name) {
    return pool.begin(
        {3, 2, [&order, name](std::int64_t begin, std::int64_t end) { order.push_back(name + begin * 10 + end); }});
  };
  ThreadPool::Job first = job(100), second = job(200), none = pool.begin({});
  EXPECT_TRUE(none.done());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(first.done(), i == 2);
    EXPECT_TRUE(pool.take_part());
  }
  EXPECT_FALSE(second.done());
  pool.finish(std::move(second));
  EXPECT_FALSE(pool.take_part());
  pool.finish(std::move(first));
  EXPECT_EQ(order, (std::vector<std::int64_t>{102, 123, 202, 223}));
}

// While the pool's own thread is busy, this one takes part in what goes before others, and not in a job that has been
// in line for longer.
TEST(ThreadPool, WhatGoesBeforeOthersIsTakenFirst) {
  ThreadPool pool("test", {0, 1}, false);
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> go{false}, other_began{false}, part_taken{false};
    std::atomic<int> began{0}, of_line{0};
    ThreadPool::Job line = pool.begin({50, 1, [&](std::int64_t, std::int64_t) {
                                         const bool first = ++began == 1;
                                         while (first && !go) std::this_thread::yield();
                                         ++of_line;
                                       }});
    while (began == 0) std::this_thread::yield();
    bool here = false;  // a piece of it ran on this thread
    std::thread other([&, test = std::this_thread::get_id()] {
      pool.finish(pool.begin_before_others({2, 1, [&](std::int64_t, std::int64_t) {
                                              if (std::this_thread::get_id() == test) {
                                                here = true;
                                                return;
                                              }
                                              other_began = true;
                                              while (!part_taken) std::this_thread::yield();
                                            }}));
    });
    while (!other_began) std::this_thread::yield();
    EXPECT_TRUE(pool.take_part());
    part_taken = true;
    other.join();
    EXPECT_TRUE(here);
    go = true;
    pool.finish(std::move(line));
    ASSERT_EQ(of_line, 50);
  }
}

// The slot of a job that went before others is another's when that is finished.
TEST(ThreadPool, WhatIsOverGoesBeforeNothing) {
  ThreadPool pool("test", {}, false);
  std::vector<char> order;
  const auto work = [&](char name) {
    return ParallelWork{2, 1, [&order, name](std::int64_t, std::int64_t) { order.push_back(name); }};
  };
  pool.finish(pool.begin_before_others(work('a')));
  ThreadPool::Job line = pool.begin(work('l')), before = pool.begin_before_others(work('b'));
  EXPECT_TRUE(pool.take_part());
  pool.finish(std::move(line));
  pool.finish(std::move(before));
  EXPECT_EQ(order, (std::vector<char>{'a', 'a', 'b', 'l', 'l', 'b'}));
}

// The job that comes next runs while another thread is still in the one before.
TEST(ThreadPool, NobodyWaitsBetweenTwoJobs) {
  ThreadPool pool("test", {0, 1}, false);
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> next_ran{false}, met{false};
    ThreadPool::Job first = pool.begin({1, 1, [&](std::int64_t, std::int64_t) {
                                          const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
                                          while (!next_ran && std::chrono::steady_clock::now() < end)
                                            std::this_thread::yield();
                                          met = next_ran.load();
                                        }});
    ThreadPool::Job second = pool.begin({1, 1, [&](std::int64_t, std::int64_t) { next_ran = true; }});
    pool.finish_in_line(std::move(first));
    pool.finish(std::move(second));
    ASSERT_TRUE(met) << round;
  }
}

TEST(ThreadPool, AnErrorBelongsToItsJobAlone) {
  ThreadPool pool("test", {0, 1}, false);
  for (int round = 0; round < 100; ++round) {
    Hits before(40), after(40);
    ThreadPool::Job first = pool.begin(before.work(3)),
                    failing = pool.begin({64, 1,
                                          [](std::int64_t begin, std::int64_t) {
                                            if (begin >= 32) throw std::runtime_error("x");
                                          }}),
                    last = pool.begin(after.work(3));
    EXPECT_THROW(pool.finish(std::move(failing)), std::runtime_error);
    pool.finish(std::move(last));
    pool.finish(std::move(first));
    EXPECT_TRUE(before.all_once());
    EXPECT_TRUE(after.all_once());
  }
}

TEST(ThreadPool, AJobThatIsForgottenIsWaitedFor) {
  ThreadPool pool("test", {0, 1}, false);
  for (int round = 0; round < 100; ++round) {
    Hits hits(64);  // gone when the job is
    { const ThreadPool::Job job = pool.begin(hits.work(1)); }
    EXPECT_TRUE(hits.all_once());
    try {
      const ThreadPool::Job job = pool.begin({8, 1, [](std::int64_t, std::int64_t) { throw std::runtime_error("x"); }});
      throw std::logic_error("another");
    } catch (const std::logic_error&) {
    }
  }
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
    if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the workers fall asleep
  }
}

// The caller waits asleep for a worker that takes long, and a worker for a job that does not come.
TEST_P(ThreadPoolSpin, SleepsWhereAWaitIsLong) {
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> done{0};
    const std::thread::id caller = std::this_thread::get_id();
    pool.parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
      if (std::this_thread::get_id() != caller) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      ++done;
    });
    EXPECT_EQ(done, 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
}

TEST_P(ThreadPoolSpin, AnErrorOfAnyPieceArrives) {
  for (int round = 0; round < 200; ++round)
    for (int failing : {0, 1})
      EXPECT_THROW(pool.parallel_for(2, 1,
                                     [&](std::int64_t piece, std::int64_t) {
                                       if (piece == failing) throw std::runtime_error("x");
                                     }),
                   std::runtime_error);
  pool.parallel_for(2, 1, [](std::int64_t, std::int64_t) {});  // the error is gone
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

// Many jobs, two of each thread at a time: each has its slot to itself until it is finished.
TEST_P(ThreadPoolSpin, JobsOfSeveralThreadsOverlap) {
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t)
    callers.emplace_back([&] {
      std::unique_ptr<Hits> last = std::make_unique<Hits>(0);
      ThreadPool::Job before;
      for (int round = 0; round < 200; ++round) {
        auto hits = std::make_unique<Hits>(1 + round % 7);
        ParallelWork work = hits->work(1 + round % 2);
        ThreadPool::Job job = round % 2 == 0 ? pool.begin(std::move(work)) : pool.begin_before_others(std::move(work));
        if (round % 3 == 0) pool.take_part();
        pool.finish(std::exchange(before, std::move(job)));
        ASSERT_TRUE(last->all_once());
        last = std::move(hits);
      }
      pool.finish(std::move(before));
      ASSERT_TRUE(last->all_once());
    });
  for (auto& c : callers) c.join();
}

// A thread that begins another job while `most_jobs` are unfinished waits until one has been finished.
TEST_P(ThreadPoolSpin, AJobWaitsForASlot) {
  std::vector<ThreadPool::Job> jobs;
  for (std::size_t i = 0; i < ThreadPool::most_jobs; ++i)
    jobs.push_back(pool.begin({1, 1, [](std::int64_t, std::int64_t) {}}));
  std::atomic<bool> began{false};
  std::thread other([&] {
    ThreadPool::Job job = pool.begin({1, 1, [](std::int64_t, std::int64_t) {}});
    began = true;
    pool.finish(std::move(job));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(began);
  pool.finish(std::move(jobs[ThreadPool::most_jobs / 2]));
  other.join();
  EXPECT_TRUE(began);
  for (ThreadPool::Job& job : jobs) pool.finish(std::move(job));
}

// Jobs that are over stand in line behind one that is not, until the line is full.
TEST(ThreadPool, ALongJobHoldsNoOtherUp) {
  ThreadPool pool("test", {}, false);
  std::int64_t of_long = 0, of_short = 0;
  ThreadPool::Job job = pool.begin({3000, 1, [&](std::int64_t, std::int64_t) { ++of_long; }});
  for (int i = 0; i < 1000; ++i) pool.finish(pool.begin({1, 1, [&](std::int64_t, std::int64_t) { ++of_short; }}));
  EXPECT_EQ(of_long, 0);
  for (int i = 0; i < 1000; ++i) pool.finish(pool.begin({1, 1, [&](std::int64_t, std::int64_t) { ++of_short; }}));
  pool.finish(std::move(job));
  EXPECT_EQ(of_long, 3000);
  EXPECT_EQ(of_short, 2000);
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
    // A thread that has a piece keeps it until each of them has one.
    std::atomic<std::size_t> began{0};
    const auto all = static_cast<std::int64_t>(cpus.size());
    pinned.parallel_for(all, 1, [&](std::int64_t piece, std::int64_t) {
      seen[static_cast<std::size_t>(piece)] = affinity();
      for (++began; began < cpus.size();) std::this_thread::yield();
    });
  }).join();
  std::vector<std::vector<int>> expected;
  for (const int cpu : cpus) expected.push_back({cpu});
  std::sort(seen.begin(), seen.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(seen, expected);
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
