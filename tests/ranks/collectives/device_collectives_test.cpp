// Collectives on devices' memory, of ranks that are threads: on the CPU device as it has them, and through pinned
// memory in small pieces, which several ranks that share one GPU can do, too. Copies between GPUs are tried by
// processes (gpu.ranks): of threads, whose device is one, each may wait for all others' streams.
#include "ranks/collectives/device_collectives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "device/gpu_place.h"
#include "ranks/collective_cases.h"
#include "ranks/collectives/device_peers.h"
#include "ranks/collectives/peer_collectives.h"
#include "ranks/shard_map.h"
#include "support/device_rig.h"
#include "support/jitter.h"
#include "support/on_gpu.h"
#include "support/random_tensors.h"
#include "support/thread_ranks.h"

namespace so::test {
namespace {

using Make =
    std::function<std::unique_ptr<DeviceCollectives>(Device&, EngineOps&, Communicator&, const CollectiveSizes&)>;

std::unique_ptr<DeviceCollectives> as_made(Device& device, EngineOps& ops, Communicator& ranks,
                                           const CollectiveSizes& sizes) {
  return make_device_collectives(device, ops, ranks, CollectiveRoute::host, sizes);
}

// Messages of 192 bytes, and sums of 100 elements at a time.
std::unique_ptr<DeviceCollectives> in_pieces(Device& device, EngineOps& ops, Communicator& ranks,
                                             const CollectiveSizes& sizes) {
  return std::make_unique<PeerCollectives>(device, ops, ranks.place(), make_staged_peers(device, ranks, 192), sizes,
                                           100);
}

// A rank's device, with all memory that its collectives are tried with: a GPU that ranks share may not be given any
// while one of them waits for another.
struct RankRig {
  RankRig(Communicator& communicator, const Make& make, const CollectiveSizes& sizes, std::int64_t elements)
      : ranks(communicator),
        collectives(make(rig.device(), *ops, ranks, sizes)),
        device(rig.device().allocate(MemoryKind::device, 2 * bytes_of(elements), "test")),
        host(rig.device().allocate(MemoryKind::pinned, 2 * bytes_of(elements), "test")) {
    ranks.barrier();
  }
  ~RankRig() {
    try {
      rig.stream().synchronize();
    } catch (...) {  // its error was the test's business
    }
  }
  static std::size_t bytes_of(std::int64_t elements) { return static_cast<std::size_t>(elements + 1) * sizeof(float); }
  std::byte* first() { return static_cast<std::byte*>(device.data()); }
  std::byte* second() { return first() + device.bytes() / 2; }
  template <class T>
  void put(std::byte* to, const std::vector<T>& values) {
    rig.stream().synchronize();
    std::copy(values.begin(), values.end(), static_cast<T*>(host.data()));
    rig.stream().copy(to, host.data(), values.size() * sizeof(T));
    rig.stream().synchronize();
  }
  template <class T>
  std::vector<T> get(const std::byte* from, std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    rig.stream().copy(host.data(), from, values.size() * sizeof(T));
    rig.stream().synchronize();
    std::copy_n(static_cast<const T*>(host.data()), values.size(), values.begin());
    return values;
  }

  DeviceRig rig{1};
  const std::unique_ptr<EngineOps> ops = make_engine_ops(rig.device());
  Communicator& ranks;
  const std::unique_ptr<DeviceCollectives> collectives;
  const Buffer device, host;
};

void reduce(DeviceCollectives& collectives, Stream& stream, Tensor values, std::span<const std::int64_t> counts,
            Tensor own, Accumulate mode) {
  collectives.reduce_scatter_sum(stream, std::array{SliceSum{values, counts, own}}, mode);
}

// Lengths of the ranks' slices, which need not be alike.
std::vector<std::vector<std::int64_t>> slices_of(int ranks) {
  std::vector<std::vector<std::int64_t>> all;
  for (const std::int64_t elements : {1000, 16, 2 * 16 * ranks}) {
    const ShardMap shards(elements, ranks);
    all.emplace_back(shards.counts().begin(), shards.counts().end());
  }
  all.emplace_back(static_cast<std::size_t>(ranks), 250);
  return all;
}

template <class T>
void expect_sums(Communicator& ranks, const Make& make) {
  const int size = ranks.size();
  for (const std::vector<std::int64_t>& counts : slices_of(size)) {
    const std::int64_t elements = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    const std::int64_t own = counts[static_cast<std::size_t>(ranks.rank())];
    const std::int64_t begin = std::accumulate(counts.begin(), counts.begin() + ranks.rank(), std::int64_t{0});
    RankRig rig(
        ranks, make,
        {.longest_slice = *std::max_element(counts.begin(), counts.end()), .reduced = dtype_of<T>, .most_gathered = 0},
        elements);
    std::vector<T> values;
    for (const float x : values_of(ranks.rank(), static_cast<std::size_t>(elements))) values.push_back(T(x));
    const std::vector<float> all = sum_in_rank_order<T>(size, static_cast<std::size_t>(elements));
    std::vector<float> expected(all.begin() + begin, all.begin() + begin + own);
    const Tensor from(rig.first(), dtype_of<T>, {elements}), to(rig.second(), DType::f32, {own});
    rig.put(rig.first(), values);
    reduce(*rig.collectives, rig.rig.stream(), from, counts, to, Accumulate::overwrite);
    EXPECT_EQ(rig.get<float>(rig.second(), own), expected);
    rig.put(rig.first(), values);
    reduce(*rig.collectives, rig.rig.stream(), from, counts, to, Accumulate::add);
    for (float& x : expected) x += x;
    EXPECT_EQ(rig.get<float>(rig.second(), own), expected) << "added";
    if constexpr (std::is_same_v<T, float>) {
      rig.put(rig.first(), values);
      reduce(*rig.collectives, rig.rig.stream(), from, counts, from.rows(begin, own), Accumulate::overwrite);
      std::copy_n(all.begin() + begin, own, values.begin() + begin);
      EXPECT_EQ(rig.get<float>(rig.first(), elements), values) << "in place; the rest is as it was";
    }
    ranks.barrier();
  }
}

// Arrays that are reduced together, of which some fill the room for what others send and some do not.
template <class T>
void expect_sums_together(Communicator& ranks, const Make& make) {
  const auto self = static_cast<std::size_t>(ranks.rank());
  const std::vector<std::vector<std::int64_t>> arrays = slices_of(ranks.size());
  std::vector<std::int64_t> begins, owns;  // of an array, and of this rank's sums of it
  std::int64_t elements = 0, mine = 0;
  CollectiveSizes sizes{.reduced = dtype_of<T>, .most_gathered = 0};
  for (const std::vector<std::int64_t>& counts : arrays) {
    begins.push_back(elements);
    owns.push_back(mine);
    elements = std::accumulate(counts.begin(), counts.end(), elements);
    mine += counts[self];
    const std::int64_t longest = *std::max_element(counts.begin(), counts.end());
    sizes.longest_slice = std::max(sizes.longest_slice, longest);
    sizes.most_reduced += longest;
  }
  RankRig rig(ranks, make, sizes, elements);
  std::vector<T> values;
  for (const float x : values_of(ranks.rank(), static_cast<std::size_t>(elements))) values.push_back(T(x));
  const std::vector<float> all = sum_in_rank_order<T>(ranks.size(), static_cast<std::size_t>(elements));
  std::vector<float> expected;
  std::vector<SliceSum> sums;
  for (std::size_t a = 0; a < arrays.size(); ++a) {
    const std::vector<std::int64_t>& counts = arrays[a];
    const std::int64_t begin = std::accumulate(counts.begin(), counts.begin() + ranks.rank(), begins[a]);
    const std::int64_t size = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    expected.insert(expected.end(), all.begin() + begin, all.begin() + begin + counts[self]);
    sums.push_back({Tensor(rig.first() + static_cast<std::size_t>(begins[a]) * sizeof(T), dtype_of<T>, {size}), counts,
                    Tensor(rig.second() + 4 * owns[a], DType::f32, {counts[self]})});
  }
  rig.put(rig.first(), values);
  rig.collectives->reduce_scatter_sum(rig.rig.stream(), sums, Accumulate::overwrite);
  EXPECT_EQ(rig.get<float>(rig.second(), mine), expected);
  rig.put(rig.first(), values);
  rig.collectives->reduce_scatter_sum(rig.rig.stream(), sums, Accumulate::add);
  for (float& x : expected) x += x;
  EXPECT_EQ(rig.get<float>(rig.second(), mine), expected) << "added";
  ranks.barrier();
}

// Arrays that are gathered together, each with its slices.
void expect_gathered(Communicator& ranks, const Make& make, const std::vector<std::vector<std::int64_t>>& arrays) {
  const auto self = static_cast<std::size_t>(ranks.rank());
  std::int64_t elements = 0, longest = 0;
  std::vector<std::vector<std::int64_t>> bytes;  // of 16 bits each
  std::vector<std::int64_t> begins, owns;        // elements before an array, and before this rank's slice of it
  for (const std::vector<std::int64_t>& counts : arrays) {
    begins.push_back(elements);
    owns.push_back(std::accumulate(counts.begin(), counts.begin() + ranks.rank(), elements));
    elements = std::accumulate(counts.begin(), counts.end(), elements);
    bytes.emplace_back();
    for (const std::int64_t count : counts) bytes.back().push_back(2 * count);
    longest = std::max(longest, 2 * *std::max_element(counts.begin(), counts.end()));
  }
  RankRig rig(ranks, make, {.longest_slice = 0, .most_gathered = static_cast<std::size_t>(longest)}, elements);
  std::vector<std::uint16_t> all(static_cast<std::size_t>(elements)), none(all.size(), 0xffff), own = none;
  std::iota(all.begin(), all.end(), std::uint16_t{7});
  for (std::size_t a = 0; a < arrays.size(); ++a)
    std::copy_n(all.begin() + owns[a], arrays[a][self], own.begin() + owns[a]);
  const auto gather_from = [&](const std::byte* slices) {
    std::vector<SliceGather> gathers;
    for (std::size_t a = 0; a < arrays.size(); ++a)
      gathers.push_back({slices + 2 * owns[a], bytes[a], rig.first() + 2 * begins[a]});
    rig.collectives->all_gather(rig.rig.stream(), gathers);
    return rig.get<std::uint16_t>(rig.first(), elements);
  };
  rig.put(rig.first(), none);
  rig.put(rig.second(), own);
  EXPECT_EQ(gather_from(rig.second()), all);
  rig.put(rig.first(), own);
  EXPECT_EQ(gather_from(rig.first()), all) << "in place";
  ranks.barrier();
}

void expect_gathers(Communicator& ranks, const Make& make) {
  const std::vector<std::vector<std::int64_t>> arrays = slices_of(ranks.size());
  for (const std::vector<std::int64_t>& counts : arrays) expect_gathered(ranks, make, {counts});
  expect_gathered(ranks, make, arrays);
}

TEST(DeviceCollectives, SumsAreInRankOrder) {
  for (const Make& make : {Make(as_made), Make(in_pieces)})
    for (const int size : {1, 2, 3})
      run_ranks(size, [&](Communicator& ranks) {
        expect_sums<float>(ranks, make);
        expect_sums<bf16>(ranks, make);
        expect_sums_together<float>(ranks, make);
        expect_sums_together<bf16>(ranks, make);
      });
}

// Streams of many ranks share a GPU's queues, in one of which a stream that waits holds up another: four ranks hung in
// two of six runs.
TEST(DeviceCollectives, GathersBringEverySlice) {
  for (const Make& make : {Make(as_made), Make(in_pieces)})
    for (const int size : on_gpu() ? std::vector{1, 2} : std::vector{1, 2, 4})
      run_ranks(size, [&](Communicator& ranks) { expect_gathers(ranks, make); });
}

TEST(DeviceCollectives, DelaysChangeNothing) {
  const Jitter jitter(5);
  run_ranks(3, [&](Communicator& ranks) {
    expect_sums<float>(ranks, in_pieces);
    expect_sums_together<bf16>(ranks, in_pieces);
    expect_gathers(ranks, in_pieces);
  });
}

// Two streams, whose collectives every rank enqueues in another order: neither waits for the other.
TEST(DeviceCollectives, StreamsDoNotWaitForEachOther) {
  run_ranks(2, [&](Communicator& ranks) {
    const std::vector<std::int64_t> counts{16, 16};
    RankRig rig(ranks, as_made, {.longest_slice = 16}, 32);
    const auto gathering = as_made(rig.rig.device(), *rig.ops, ranks, {.most_gathered = 64});
    const auto stream = rig.rig.device().create_stream("gather");
    ranks.barrier();
    rig.put(rig.first(), std::vector<float>(32, 1.0f));
    rig.put(rig.second(), std::vector<float>(32, 2.0f));
    std::byte* const own = rig.second() + 64 * ranks.rank();
    const std::vector<std::int64_t> bytes{64, 64};
    const Tensor sum(rig.first() + 64 * ranks.rank(), DType::f32, {16});
    for (int i = 0; i < 4; ++i) {
      if (ranks.rank() == 0) gathering->all_gather(*stream, std::array{SliceGather{own, bytes, rig.second()}});
      reduce(*rig.collectives, rig.rig.stream(), Tensor(rig.first(), DType::f32, {32}), counts, sum,
             Accumulate::overwrite);
      if (ranks.rank() == 1) gathering->all_gather(*stream, std::array{SliceGather{own, bytes, rig.second()}});
    }
    stream->synchronize();
    EXPECT_EQ(rig.get<float>(rig.first() + 64 * ranks.rank(), 16)[0], 1.0f + 4 * 1.0f);
    ranks.barrier();
  });
}

// What waits for the stream of a rank that is left alone finds the failure.
TEST(DeviceCollectives, ARankThatGivesUpIsTheStreamsError) {
  std::atomic<bool> ready = false;  // rank 0's collectives, which the ranks make together
  run_ranks(2, [&](Communicator& ranks) {
    RankRig rig(ranks, in_pieces, {.longest_slice = 100}, 200);
    if (ranks.rank() == 1) {
      while (!ready) std::this_thread::yield();
      ranks.abort("a device error");
      return;
    }
    ready = true;
    const std::vector<std::int64_t> counts{100, 100};
    reduce(*rig.collectives, rig.rig.stream(), Tensor(rig.first(), DType::f32, {200}), counts,
           Tensor(rig.second(), DType::f32, {100}), Accumulate::overwrite);
    try {
      rig.rig.stream().synchronize();
      ADD_FAILURE() << "a sum without rank 1";
    } catch (const RankFailure& failure) {
      EXPECT_EQ(failure.what(), std::string("rank 1 gave up: a device error"));
    }
  });
}

// A plan counts what will be taken, whatever the way.
TEST(DeviceCollectives, ADryDeviceTakesTheSameMemory) {
  const CollectiveSizes sizes{.longest_slice = 1000, .reduced = DType::bf16, .most_gathered = 3000};
  for (const CollectiveRoute route : {CollectiveRoute::nccl, CollectiveRoute::p2p, CollectiveRoute::host}) {
    const auto ranks = make_dry_communicator(4);
    const auto device = make_dry_device(DeviceKind::cuda);
    const auto ops = make_engine_ops(*device);
    const auto made = make_device_collectives(*device, *ops, *ranks, route, sizes);
    // With copies, what arrives has such memory twice, or the least that can be shared.
    const std::size_t places = 3 * PiecePlaces::of_a_rank << 20;
    EXPECT_EQ(device->ledger().held(MemoryKind::device),
              route == CollectiveRoute::p2p ? places + shareable_bytes : 3u * 1000 * 2);
    EXPECT_EQ(device->ledger().held(MemoryKind::pinned), route == CollectiveRoute::host ? 2 * 3u * 3000 : 0);
    const std::vector<std::int64_t> counts(4, 250);
    const auto stream = device->create_stream("dry");
    reduce(*made, *stream, Tensor(nullptr, DType::bf16, {1000}), counts, Tensor(nullptr, DType::f32, {250}),
           Accumulate::add);
    made->all_gather(*stream, std::array{SliceGather{nullptr, counts, nullptr}});
  }
  // Gathers into memory that can be shared need no places.
  for (const std::int64_t reduced : {0, 1'000'000})
    for (const std::size_t bytes : {std::size_t{1} << 20, std::size_t{2} << 20}) {
      const auto ranks = make_dry_communicator(2);
      const auto device = make_dry_device(DeviceKind::cuda);
      const auto ops = make_engine_ops(*device);
      const Buffer all = device->allocate(MemoryKind::device, bytes, "all");
      const auto made = make_device_collectives(*device, *ops, *ranks, CollectiveRoute::p2p,
                                                {.longest_slice = reduced, .most_gathered = 3000}, &all);
      const std::size_t arrivals = (static_cast<std::size_t>(reduced) * 4 + 4095) / 4096 * 4096;
      EXPECT_EQ(device->ledger().held(MemoryKind::device),
                bytes + 2 * arrivals + (bytes == shareable_bytes ? 0 : PiecePlaces::of_a_rank << 20));
    }
}

}  // namespace
}  // namespace so::test
