// NCCL with one rank, which is all that one GPU can have: every call is made, and every way out is gone.
#include "ranks/collectives/nccl/nccl_communicator.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "ranks/collective_cases.h"
#include "ranks/collectives/device_collectives.h"
#include "ranks/collectives/route.h"
#include "ranks/thread_ranks.h"
#include "support/device_rig.h"
#include "support/on_gpu.h"
#include "support/random_tensors.h"
#include "support/thread_ranks.h"

namespace so::test {
namespace {

#define SO_NCCL_ONLY()                                  \
  if (!on_gpu()) GTEST_SKIP() << "on a GPU only: NCCL"; \
  if (std::string reason; !have_nccl(reason)) GTEST_SKIP() << reason

constexpr std::int64_t count = 100'003;

TEST(NcclCommunicator, SendsToItselfAndGathers) {
  SO_NCCL_ONLY();
  DeviceRig rig;
  Stream& stream = rig.stream();
  const auto ranks = make_single_communicator();
  ranks->set_time_limit(60);  // the first group connects, which takes NCCL a moment
  const std::vector<float> values = values_of(0, count);
  const TestTensor from(stream, DType::f32, {count}, {values.begin(), values.end()});
  const TestTensor sent(stream, DType::f32, {count}), gathered(stream, DType::f32, {count});
  NcclCommunicator nccl(rig.device(), *ranks);
  for (int i = 0; i < 3; ++i) {  // the first makes connections
    nccl.group(stream, "itself", [&] {
      nccl.send(from.tensor().data(), from.tensor().bytes(), 0);
      nccl.receive(sent.tensor().data(), sent.tensor().bytes(), 0);
    });
    nccl.group(stream, "all_gather",
               [&] { nccl.all_gather(sent.tensor().data(), sent.tensor().bytes(), gathered.tensor().data()); });
  }
  EXPECT_EQ(sent.bytes(stream), from.bytes(stream));
  EXPECT_EQ(gathered.bytes(stream), from.bytes(stream));
}

TEST(NcclCommunicator, WhatNcclRefusesIsAnErrorInItsWords) {
  SO_NCCL_ONLY();
  DeviceRig rig;
  const auto ranks = make_single_communicator();
  const TestTensor from(rig.stream(), DType::f32, {16});
  NcclCommunicator nccl(rig.device(), *ranks);
  try {
    nccl.group(rig.stream(), "to nobody", [&] { nccl.send(from.tensor().data(), 64, 5); });
    ADD_FAILURE() << "rank 5 of 1";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("NCCL: "), std::string::npos) << error.what();
  }
}

TEST(NcclCommunicator, TwoRanksOnOneGpuAreRefusedOnBoth) {
  SO_NCCL_ONLY();
  std::atomic<int> refused = 0;
  EXPECT_THROW(run_ranks(2,
                         [&](Communicator& ranks) {
                           DeviceRig rig;
                           try {
                             const NcclCommunicator nccl(rig.device(), ranks);
                           } catch (const Error& error) {
                             EXPECT_NE(std::string(error.what()).find("NCCL"), std::string::npos) << error.what();
                             ++refused;
                             throw;
                           }
                         }),
               Error);
  EXPECT_EQ(refused, 2);
}

// A rank that gives up is heard of by the watch: what waits for the device finds it, and nothing more is enqueued.
TEST(NcclCommunicator, ARankThatGivesUpEndsIt) {
  SO_NCCL_ONLY();
  DeviceRig rig;
  const auto ranks = make_thread_ranks(1, 60);
  const TestTensor from(rig.stream(), DType::f32, {16});
  NcclCommunicator nccl(rig.device(), *ranks[0]);
  ranks[0]->abort("a device error");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  std::string found;
  while (found.empty() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    try {
      rig.stream().synchronize();
    } catch (const RankFailure& failure) {
      found = failure.what();
    }
  }
  EXPECT_EQ(found, "rank 0 gave up: a device error");
  while (std::chrono::steady_clock::now() < end) try {  // NCCL is ended just after
      nccl.group(rig.stream(), "after", [&] { nccl.all_gather(from.tensor().data(), 64, from.tensor().data()); });
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } catch (const RankFailure&) {
      return;
    }
  ADD_FAILURE() << "collectives after a failure";
}

// A stream that does not come to the end of a collective within the time limit is a failure, too.
TEST(NcclCommunicator, ACollectiveThatDoesNotEndIsFound) {
  SO_NCCL_ONLY();
  DeviceRig rig;
  const auto ranks = make_thread_ranks(1, 0.5);
  const TestTensor from(rig.stream(), DType::f32, {16});
  NcclCommunicator nccl(rig.device(), *ranks[0]);
  // Host work within it takes longer, since no other rank is there to be waited for.
  nccl.group(rig.stream(), "all_gather", [&] {
    rig.stream().host("hang", [] { std::this_thread::sleep_for(std::chrono::seconds(3)); });
    nccl.all_gather(from.tensor().data(), 64, from.tensor().data());
  });
  try {
    rig.stream().synchronize();
    ADD_FAILURE() << "a collective of 3 s";
  } catch (const RankFailure& failure) {
    EXPECT_EQ(failure.what(), std::string("rank 0 gave up: a collective of NCCL's has not ended within 0.5 s"));
  }
}

// One rank's collectives, as the engine's many use them.
TEST(NcclCollectives, OneRanksSumsAndGathersAreItsOwn) {
  SO_NCCL_ONLY();
  DeviceRig rig;
  Stream& stream = rig.stream();
  const auto ranks = make_single_communicator();
  const auto ops = make_engine_ops(rig.device());
  const auto nccl = make_device_collectives(rig.device(), *ops, *ranks, CollectiveRoute::nccl,
                                            {.longest_slice = count, .most_gathered = 4 * count});
  const std::vector<float> values = values_of(0, count);
  const TestTensor from(stream, DType::f32, {count}, {values.begin(), values.end()});
  const TestTensor sum(stream, DType::f32, {count}), gathered(stream, DType::f32, {count}),
      second(stream, DType::f32, {count});
  const std::vector<std::int64_t> counts{count}, bytes{4 * count};
  nccl->reduce_scatter_sum(stream, std::array{SliceSum{from, counts, sum}}, Accumulate::overwrite);
  const auto data = [](const TestTensor& tensor) { return static_cast<std::byte*>(tensor.tensor().data()); };
  nccl->all_gather(stream, std::array{SliceGather{data(sum), bytes, data(gathered)},
                                      SliceGather{data(from), bytes, data(second)}});  // in one call
  EXPECT_EQ(sum.bytes(stream), from.bytes(stream));
  EXPECT_EQ(gathered.bytes(stream), from.bytes(stream));
  EXPECT_EQ(second.bytes(stream), from.bytes(stream));
}

}  // namespace
}  // namespace so::test
