// Messages of a group that splits sequences, of ranks that are threads: on the CPU device, and through pinned memory
// between ranks that share a GPU.
#include "offload/sequence_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "ranks/collective_cases.h"
#include "support/device_rig.h"
#include "support/thread_ranks.h"

namespace so::test {
namespace {

// A rank's device and all memory of a test: a GPU that ranks share may not be given any while one of them waits.
struct GroupRig {
  GroupRig(Communicator& ranks, int size, std::int64_t elements)
      : group(ranks, size, rig.device(), CollectiveRoute::host),
        device(rig.device().allocate(MemoryKind::device, 2 * bytes_of(elements), "test")),
        host(rig.device().allocate(MemoryKind::pinned, bytes_of(elements), "test")),
        first(device.data(), DType::f32, {elements}),
        second(static_cast<std::byte*>(device.data()) + bytes_of(elements), DType::f32, {elements}) {
    ranks.barrier();
  }
  static std::size_t bytes_of(std::int64_t elements) { return static_cast<std::size_t>(elements) * sizeof(float); }
  void put(Tensor to, const std::vector<float>& values) {
    std::copy(values.begin(), values.end(), static_cast<float*>(host.data()));
    rig.stream().copy(to.data(), host.data(), values.size() * sizeof(float));
    rig.stream().synchronize();
  }
  std::vector<float> get(Tensor from) {
    rig.stream().copy(host.data(), from.data(), from.bytes());
    rig.stream().synchronize();
    const auto* const values = static_cast<const float*>(host.data());
    return {values, values + from.size()};
  }

  DeviceRig rig{1};
  SequenceGroup group;
  const Buffer device, host;
  const Tensor first, second;
};

// Rank r sends 1 + r elements to each rank, which name both.
TEST(SequenceGroup, EachRankGetsItsPartOfWhatOthersSend) {
  constexpr int size = 3;
  run_ranks(size, [&](Communicator& ranks) {
    GroupRig rig(ranks, size, 16);
    const auto self = static_cast<std::int64_t>(ranks.rank());
    std::vector<std::int64_t> sent, received;
    std::vector<float> values, expected;
    for (std::int64_t r = 0; r < size; ++r) {
      sent.push_back((1 + self) * std::int64_t{sizeof(float)});
      received.push_back((1 + r) * std::int64_t{sizeof(float)});
      for (std::int64_t i = 0; i <= self; ++i) values.push_back(static_cast<float>(100 * self + 10 * r + i));
      for (std::int64_t i = 0; i <= r; ++i) expected.push_back(static_cast<float>(100 * r + 10 * self + i));
    }
    const Tensor from = rig.first.rows(0, std::ssize(values)), to = rig.second.rows(0, std::ssize(expected));
    rig.put(from, values);
    for (int twice = 0; twice < 2; ++twice) {
      rig.group.all_to_all(rig.rig.stream(), to, received, from, sent);
      EXPECT_EQ(rig.get(to), expected);
    }
    ranks.barrier();
  });
}

TEST(SequenceGroup, SumsAreOfAGroupAndInRankOrder) {
  constexpr int all = 4, size = 2;
  constexpr std::int64_t elements = 37;
  run_ranks(all, [&](Communicator& ranks) {
    GroupRig rig(ranks, size, elements);
    const int first = ranks.rank() / size * size;
    rig.put(rig.first, values_of(ranks.rank(), elements));
    rig.group.add_up(rig.rig.stream(), rig.first, rig.second);
    std::vector<float> expected = values_of(first, elements);
    const std::vector<float> other = values_of(first + 1, elements);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += other[i];
    EXPECT_EQ(rig.get(rig.first), expected);
    ranks.barrier();
  });
}

// A plan counts what will be taken, and its calls move nothing.
TEST(SequenceGroup, ADryDeviceTakesWhatItsRouteTakes) {
  for (const CollectiveRoute route : {CollectiveRoute::nccl, CollectiveRoute::p2p, CollectiveRoute::host}) {
    const auto ranks = make_dry_communicator(4);
    const auto device = make_dry_device(DeviceKind::cuda);
    SequenceGroup group(*ranks, 4, *device, route);
    // Four places for each of the three others, of whole pages, in 64 MiB.
    const std::size_t places = 3 * 4 * ((std::size_t{64} << 20) / (3 * 4) / 4096 * 4096);
    EXPECT_EQ(device->ledger().held(MemoryKind::device), route == CollectiveRoute::p2p ? places : 0u);
    EXPECT_EQ(device->ledger().held(MemoryKind::pinned), route == CollectiveRoute::host ? std::size_t{6} << 23 : 0u);
    const auto stream = device->create_stream("dry");
    const std::vector<std::int64_t> bytes(4, 4);
    group.all_to_all(*stream, Tensor(nullptr, DType::f32, {4}), bytes, Tensor(nullptr, DType::f32, {4}), bytes);
    group.add_up(*stream, Tensor(nullptr, DType::f32, {2}), Tensor(nullptr, DType::f32, {3, 2}));
  }
}

}  // namespace
}  // namespace so::test
