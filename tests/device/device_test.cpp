#include "device/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/build_facts.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "device/arena.h"
#include "device/cpu/cpu_device.h"
#include "support/make_device.h"

namespace so {
namespace {

class DeviceTest : public ::testing::Test {
 protected:
  ThreadPool pool{"test", {0, 1}, false};
  std::unique_ptr<Device> device = test::make_test_device(pool);
};

void nap() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

TEST_F(DeviceTest, RunsWorkInOrder) {
  auto stream = device->create_stream("a");
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) stream->host("push", [&order, i] { order.push_back(i); });
  stream->synchronize();
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

// What a stream awaits runs between what comes before it and what follows, memory included.
TEST_F(DeviceTest, AwaitsHostWorkInOrder) {
  const auto stream = device->create_stream("a");
  const Buffer here = device->allocate(MemoryKind::pinned, 1000 * sizeof(int), "here");
  const Buffer there = device->allocate(MemoryKind::device, here.bytes(), "there");
  auto* const values = static_cast<int*>(here.data());
  for (int i = 0; i < 1000; ++i) values[i] = i;
  for (int round = 0; round < 3; ++round) {
    stream->copy(there.data(), values, here.bytes());
    stream->await("forget", [=] { std::fill_n(values, 1000, -1); });
    stream->copy(values, there.data(), here.bytes());
    stream->await("add", [=] {
      nap();
      for (int i = 0; i < 1000; ++i) ++values[i];
    });
  }
  stream->synchronize();
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(values[i], i + 3);
}

// Each of the two begins only when the other has begun, so neither may hold the other up.
TEST_F(DeviceTest, WhatStreamsAwaitMayWaitForEachOther) {
  const auto a = device->create_stream("a"), b = device->create_stream("b");
  std::atomic<int> begun = 0;
  const auto meet = [&](int round) {
    ++begun;
    for (int i = 0; begun < 2 * round && i < 5000; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (begun < 2 * round) throw std::runtime_error("the other stream's work does not begin");
  };
  for (int round = 1; round <= 3; ++round) {
    a->await("meet", [&, round] { meet(round); });
    b->await("meet", [&, round] { meet(round); });
  }
  EXPECT_NO_THROW(a->synchronize());
  EXPECT_NO_THROW(b->synchronize());
}

TEST_F(DeviceTest, AnErrorOfAwaitedWorkStopsTheStream) {
  const auto stream = device->create_stream("a");
  bool later = false;
  stream->await("fail", [] { throw std::runtime_error("broken"); });
  stream->await("later", [&] { later = true; });
  EXPECT_THROW(stream->synchronize(), std::runtime_error);
  EXPECT_FALSE(later);
}

// Whatever a thread's current device is, each verb goes to the device of its stream.
TEST_F(DeviceTest, IsUsedByAThreadWhoseDeviceIsAnother) {
  const std::unique_ptr<Device> other = test::on_gpu() ? make_cuda_device(0) : make_cpu_device(pool);
  const auto stream = device->create_stream("a");
  std::vector<int> values(1000, 7), back(1000);
  std::thread([&] {
    other->make_current();
    const std::size_t bytes = values.size() * sizeof(int);
    const Buffer there = device->allocate(MemoryKind::device, bytes, "there");
    const auto begin = device->create_event(Timing::on), end = device->create_event(Timing::on);
    const auto second = device->create_stream("b");
    stream->record(*begin);
    stream->zero(there.data(), bytes);
    stream->copy(there.data(), values.data(), bytes);
    stream->yield();
    stream->record(*end);
    second->wait(*end);
    second->copy(back.data(), there.data(), bytes);
    second->host("add", [&] { ++back[0]; });
    second->synchronize();
    EXPECT_GE(end->seconds_since(*begin), 0);
    EXPECT_EQ(device->own_memory().has_value(), test::on_gpu());
  }).join();
  values[0] = 8;
  EXPECT_EQ(back, values);
}

// The CPU holds CUDA's rule, so that work which would go to the wrong GPU is found where there is none.
TEST_F(DeviceTest, ACpuStreamRefusesAThreadWhoseDeviceIsAnother) {
  SO_CPU_ONLY("a GPU's handle has no check");
  const auto stream = device->create_stream("a");
  CpuStream& handle = cpu(*stream);
  handle.enqueue("here", WorkCategory::by_name, [] {});
  std::thread([&] {
    EXPECT_THROW(handle.enqueue("there", WorkCategory::by_name, [] {}), Bug);
    cpu(*stream).enqueue("there", WorkCategory::by_name, [] {});
  }).join();
  stream->synchronize();
}

// Memory given back counts no more. On the CPU device there is one memory, and the host's limit is for all of it.
TEST_F(DeviceTest, AllocatesWithinItsLimits) {
  constexpr std::size_t page = 4096;
  device->limit_memory({.device = 4 * page, .host = 8 * page});
  const auto refused = [&](MemoryKind kind, std::size_t bytes) {
    try {
      device->allocate(kind, bytes, "one more");
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  Buffer pinned = device->allocate(MemoryKind::pinned, 3 * page, "pinned");
  const Buffer pageable = device->allocate(MemoryKind::pageable, 3 * page, "pageable");
  Buffer own = device->allocate(MemoryKind::device, 2 * page, "own");
  EXPECT_EQ(refused(MemoryKind::device, 2 * page).empty(), device->kind() != DeviceKind::cpu);
  EXPECT_NE(refused(MemoryKind::device, 3 * page), "");
  for (const MemoryKind kind : {MemoryKind::pinned, MemoryKind::pageable}) {
    const std::string reason = refused(kind, 3 * page);
    EXPECT_NE(reason.find("out of host memory: 12.3 kB for 'one more'"), std::string::npos) << reason;
    EXPECT_NE(reason.find("more than 32.8 kB, which the run may have"), std::string::npos) << reason;
  }
  pinned = Buffer();
  EXPECT_EQ(refused(MemoryKind::pinned, 3 * page), "");
  own = Buffer();
  const std::string large = refused(MemoryKind::device, 9 * page);
  EXPECT_NE(large.find("which the run may have"), std::string::npos) << large;
  device->limit_memory({});
  EXPECT_EQ(refused(MemoryKind::device, 9 * page), "");
}

TEST_F(DeviceTest, CopiesAndZeroes) {
  const std::size_t bytes = (3u << 20) + 17;
  auto stream = device->create_stream("a");
  for (const MemoryKind host : {MemoryKind::pageable, MemoryKind::pinned}) {
    Buffer from = device->allocate(host, bytes, "from"), to = device->allocate(host, bytes, "to");
    Buffer a = device->allocate(MemoryKind::device, bytes, "a"), b = device->allocate(MemoryKind::device, bytes, "b");
    auto *sent = static_cast<unsigned char*>(from.data()), *back = static_cast<unsigned char*>(to.data());
    for (std::size_t i = 0; i < bytes; ++i) sent[i] = static_cast<unsigned char>(i * 7);
    stream->copy(a.data(), from.data(), bytes);
    stream->copy(b.data(), a.data(), bytes);
    stream->zero(static_cast<std::byte*>(b.data()) + 5, 1000);
    stream->copy(to.data(), b.data(), bytes);
    stream->synchronize();
    for (std::size_t i = 0; i < bytes; ++i)
      ASSERT_EQ(back[i], i >= 5 && i < 1005 ? 0 : static_cast<unsigned char>(i * 7)) << i;
  }
}

TEST_F(DeviceTest, AStreamWaitsForTheEventOfAnother) {
  auto a = device->create_stream("a"), b = device->create_stream("b");
  auto event = device->create_event();
  int value = 0;  // unsynchronised but for the event: the thread sanitizer watches
  for (int round = 0; round < 50; ++round) {
    a->host("set", [&value, round] {
      if (round % 10 == 0) nap();
      value = round;
    });
    a->record(*event);
    b->wait(*event);
    int seen = -1;
    b->host("get", [&] { seen = value; });
    b->record(*event);
    a->wait(*event);
    b->synchronize();
    EXPECT_EQ(seen, round);
  }
}

TEST_F(DeviceTest, AWaitKeepsThePointItWasMadeFor) {
  auto a = device->create_stream("a"), b = device->create_stream("b");
  auto event = device->create_event();
  std::atomic<bool> open{false};
  a->record(*event);
  b->wait(*event);  // the first record
  a->host("gate", [&] {
    while (!open) std::this_thread::yield();
  });
  a->record(*event);  // the second must not hold b back
  b->synchronize();
  EXPECT_FALSE(event->done());
  open = true;
  event->synchronize();
  EXPECT_TRUE(event->done());
}

TEST_F(DeviceTest, TheFirstErrorPoisonsTheStreamAndTravelsAlongEvents) {
  auto a = device->create_stream("a"), b = device->create_stream("b");
  auto event = device->create_event();
  bool later_ran = false, other_ran = false;
  a->host("fail", [] { throw Error("first"); });
  a->host("fail", [] { throw Error("second"); });
  a->host("later", [&] { later_ran = true; });
  a->record(*event);
  b->wait(*event);
  b->host("other", [&] { other_ran = true; });
  for (Stream* stream : {a.get(), b.get()}) {
    try {
      stream->synchronize();
      ADD_FAILURE() << "no error on " << stream->name();
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "first");
    }
  }
  EXPECT_THROW(event->synchronize(), Error);
  EXPECT_FALSE(later_ran);
  EXPECT_FALSE(other_ran);
}

TEST_F(DeviceTest, AnEventNeverRecordedHoldsNobody) {
  auto event = device->create_event();
  event->synchronize();
  EXPECT_TRUE(event->done());
  auto stream = device->create_stream("a");
  stream->wait(*event);
  stream->synchronize();
}

TEST_F(DeviceTest, AThreadWaitsForAnEventInAnyWay) {
  for (const Waiting waiting : {Waiting::spins, Waiting::sleeps, Waiting::yields}) {
    SCOPED_TRACE(static_cast<int>(waiting));
    const auto own = test::make_test_device(pool);  // since a failure stays
    auto stream = own->create_stream("a");
    auto event = own->create_event(Timing::off, waiting);
    event->synchronize();  // nothing was recorded
    int value = 0;
    stream->host("set", [&] {
      nap();
      value = 1;
    });
    stream->record(*event);
    event->synchronize();
    EXPECT_EQ(value, 1);
    EXPECT_TRUE(event->done());
    stream->host("set", [&] {
      nap();
      value = 2;
    });
    stream->record(*event);  // moves it: what was seen of the former record no longer counts
    event->synchronize();
    EXPECT_EQ(value, 2);
    stream->host("fail", [] {
      nap();
      throw Error("first");
    });
    stream->record(*event);
    EXPECT_THROW(event->synchronize(), Error);
    EXPECT_THROW(stream->synchronize(), Error);
  }
}

// Without yield() the first stream's copies all go before the second's, on a GPU that has one engine for a direction.
TEST_F(DeviceTest, AStreamThatYieldsLetsTheCopiesOfOthersGoBetweenItsOwn) {
  constexpr std::size_t bytes = std::size_t{32} << 20;
  const int copies = test::on_gpu() ? 32 : 4;  // about 20 ms
  const Buffer host = device->allocate(MemoryKind::pinned, bytes, "host"),
               there = device->allocate(MemoryKind::device, 2 * bytes, "device");
  auto* const to = static_cast<std::byte*>(there.data());
  const auto many = device->create_stream("many"), one = device->create_stream("one");
  const auto first = device->create_event(), last = device->create_event(), small = device->create_event();
  many->copy(to, host.data(), bytes);
  many->record(*first);
  for (int i = 1; i < copies; ++i) {
    many->yield();
    many->copy(to, host.data(), bytes);
  }
  many->record(*last);
  first->synchronize();
  one->copy(to + bytes, host.data(), 4096);
  one->record(*small);
  small->synchronize();
  EXPECT_TRUE(!test::on_gpu() || !last->done());
  many->synchronize();
  EXPECT_TRUE(last->done());
}

TEST_F(DeviceTest, TimedEventsMeasureWhatRanBetweenThem) {
  auto a = device->create_stream("a"), b = device->create_stream("b");
  auto first = device->create_event(Timing::on), middle = device->create_event(Timing::on),
       last = device->create_event(Timing::on);
  const auto begin = std::chrono::steady_clock::now();
  a->record(*first);
  a->host("nap", nap);
  a->record(*middle);
  b->wait(*middle);
  b->host("nap", nap);
  b->record(*last);  // on another stream
  last->synchronize();
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double one = middle->seconds_since(*first), two = last->seconds_since(*middle);
  const double rounding = 1e-5;  // a GPU's clock reads in half microseconds
  EXPECT_GE(one, 0.005 - rounding);
  EXPECT_GE(two, 0.005 - rounding);
  EXPECT_LE(one + two, wall + rounding);
  EXPECT_NEAR(last->seconds_since(*first), one + two, rounding);
  EXPECT_EQ(last->seconds_since(*last), 0);

  // Recording again moves the point.
  b->record(*middle);
  b->synchronize();
  EXPECT_GE(middle->seconds_since(*first), one + two - rounding);
}

TEST_F(DeviceTest, AnEventWithoutATimeSaysSo) {
  auto stream = device->create_stream("a");
  auto timed = device->create_event(Timing::on), later = device->create_event(Timing::on);
  auto untimed = device->create_event();
  stream->record(*timed);
  stream->record(*untimed);
  stream->synchronize();
  EXPECT_THROW((void)untimed->seconds_since(*timed), Bug);
  EXPECT_THROW((void)timed->seconds_since(*untimed), Bug);
  EXPECT_THROW((void)later->seconds_since(*timed), Bug) << "never recorded";
  std::atomic<bool> open{false};
  stream->host("gate", [&] {
    while (!open) std::this_thread::yield();
  });
  stream->record(*later);
  EXPECT_THROW((void)later->seconds_since(*timed), Bug) << "not there yet";
  open = true;
  later->synchronize();
  EXPECT_GE(later->seconds_since(*timed), 0);
  auto dry = make_dry_device(device->kind());
  EXPECT_EQ(dry->create_event(Timing::on)->seconds_since(*dry->create_event(Timing::on)), 0);
}

TEST_F(DeviceTest, AFailedStreamsErrorTravelsToItsTimes) {
  auto stream = device->create_stream("a");
  auto before = device->create_event(Timing::on), after = device->create_event(Timing::on);
  stream->record(*before);
  stream->host("fail", [] { throw Error("first"); });
  stream->record(*after);
  EXPECT_THROW(after->synchronize(), Error);
  EXPECT_THROW((void)after->seconds_since(*before), Error);
}

TEST_F(DeviceTest, TheLedgerKnowsEveryBuffer) {
  Buffer a = device->allocate(MemoryKind::pinned, 1000, "ring");
  {
    Buffer b = device->allocate(MemoryKind::pinned, 500, "ring");
    EXPECT_EQ(device->ledger().held(MemoryKind::pinned), 1500u);
  }
  EXPECT_EQ(device->ledger().held(MemoryKind::pinned), 1000u);
  EXPECT_EQ(device->ledger().peak(MemoryKind::pinned), 1500u);
  EXPECT_EQ(device->ledger().peaks(MemoryKind::pinned).at("ring"), 1500u);
  Buffer c = std::move(a);
  EXPECT_FALSE(a);
  EXPECT_EQ(device->ledger().held(MemoryKind::pinned), 1000u);
}

TEST_F(DeviceTest, RefusesWhatCannotBeHad) {
  try {
    (void)device->allocate(MemoryKind::device, std::size_t{1} << 60, "too much");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("too much"), std::string::npos);
  }
  EXPECT_EQ(device->ledger().held(MemoryKind::device), 0u);
}

void use(Arena& arena) {
  Arena::Scope outer(arena);
  arena.acquire("x", DType::f32, {10, 10});
  {
    Arena::Scope inner(arena);
    arena.acquire("y", DType::bf16, {1000});
  }
  arena.acquire("z", DType::f32, {100});
}

TEST_F(DeviceTest, AnArenaSizedByADryRunFitsExactly) {
  auto dry = make_dry_device(device->kind());
  Arena plan(*dry, MemoryKind::device, "plan", 0);
  use(plan);
  EXPECT_EQ(plan.high_water(), 512u + 2048u);
  EXPECT_EQ(dry->ledger().held(MemoryKind::device), 0u);
  Arena real(*device, MemoryKind::device, "real", plan.high_water());
  use(real);
  EXPECT_EQ(real.high_water(), plan.high_water());
  Arena small(*device, MemoryKind::device, "small", plan.high_water() - 1);
  EXPECT_THROW(use(small), Bug);
}

// A program that has no CUDA backend says why, where a GPU is asked for.
TEST(Backend, OfAGpuSaysWhyTheBuildHasNone) {
  const std::string why = why_built_without_cuda();
  if (why.empty()) GTEST_SKIP() << "this build has CUDA";
  EXPECT_FALSE(find_cuda().usable);
  EXPECT_NE(find_cuda().reason.find(why), std::string::npos) << find_cuda().reason;
  EXPECT_NE(build_text().find("without CUDA (" + why + ")"), std::string::npos) << build_text();
}

}  // namespace
}  // namespace so
