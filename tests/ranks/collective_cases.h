// Cases that every communicator must pass with any number of ranks: on threads (thread_ranks_test.cpp) and processes
// (mpi/mpi_cases.cpp). Each rank of a group calls a case with its own communicator.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ranks/communicator.h"
#include "ranks/shard_map.h"

namespace so::test {

// Values of very different size, so that another order of additions gives other bits.
inline std::vector<float> values_of(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) * 7919u + 1u);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(normal(random), static_cast<int>(random() % 24u));
  return values;
}

template <class T>
std::vector<float> sum_in_rank_order(int ranks, std::size_t count) {
  std::vector<float> sum;
  for (int r = 0; r < ranks; ++r) {
    const std::vector<float> values = values_of(r, count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(T(values[i]));
      if (r == 0)
        sum.push_back(value);
      else
        sum[i] += value;
    }
  }
  return sum;
}

inline void place_is_sound(Communicator& ranks) {
  EXPECT_GE(ranks.rank(), 0);
  EXPECT_LT(ranks.rank(), ranks.size());
  EXPECT_EQ(ranks.place().hosts, 1);
  EXPECT_EQ(ranks.place().local_size, ranks.size());
  EXPECT_EQ(ranks.place().local_rank, ranks.rank());
}

inline void all_reduce_adds_in_rank_order(Communicator& ranks) {
  std::vector<float> values = values_of(ranks.rank(), 100);
  ranks.all_reduce_sum(values);
  EXPECT_EQ(values, sum_in_rank_order<float>(ranks.size(), 100));
  // 1e16 + 1 - 1e16 is 0 in this order and 1 in another.
  std::array<double, 2> sums{ranks.rank() == 0 ? 1e16 : ranks.rank() == 1 ? 1.0 : -0.5e16, -0.0};
  double expected = 1e16;
  for (int r = 1; r < ranks.size(); ++r) expected += r == 1 ? 1.0 : -0.5e16;
  ranks.all_reduce_sum(sums);
  EXPECT_EQ(sums[0], expected);
  EXPECT_TRUE(std::signbit(sums[1]));
  ranks.all_reduce_sum(std::span<double>());
}

template <class T>
void reduce_scatter_gives_each_its_slice(Communicator& ranks) {
  // Slices of the last are longer than what is received at a time (2^18 elements of each rank).
  for (const std::int64_t count : {0, 5, 100, 4099, 600'001}) {
    if (count > 4099 && ranks.size() > 2) continue;
    const auto n = static_cast<std::size_t>(count);
    const std::vector<float> wide = values_of(ranks.rank(), n);
    const std::vector<T> values(wide.begin(), wide.end());
    const ShardMap map(count, ranks.size());
    const ShardMap::Slice slice = map.slice(ranks.rank());
    std::vector<float> own(static_cast<std::size_t>(slice.size()), -1.0f);
    ranks.reduce_scatter_sum(std::span<const T>(values), map.counts(), own);
    const std::vector<float> sum = sum_in_rank_order<T>(ranks.size(), n);
    EXPECT_TRUE(std::equal(own.begin(), own.end(), sum.begin() + slice.begin)) << count << " elements";
  }
}

// The slice may be the result's own place, and the gathered slices then make up the whole sum.
inline void reduce_scatter_and_all_gather_in_place(Communicator& ranks) {
  for (const std::size_t count : {3u, 1000u, 600'000u}) {
    if (count > 1000 && ranks.size() > 2) continue;
    std::vector<float> values = values_of(ranks.rank(), count);
    const ShardMap map(static_cast<std::int64_t>(count), ranks.size());
    const ShardMap::Slice slice = map.slice(ranks.rank());
    const std::span<float> own =
        std::span(values).subspan(static_cast<std::size_t>(slice.begin), static_cast<std::size_t>(slice.size()));
    ranks.reduce_scatter_sum(values, map.counts(), own);
    ranks.all_gather(std::span<const float>(own), map.counts(), std::span(values));
    EXPECT_EQ(values, sum_in_rank_order<float>(ranks.size(), count));
  }
}

inline void all_gather_keeps_rank_order(Communicator& ranks) {
  std::vector<std::int64_t> counts;  // of rank r: r elements, so rank 0 gives none
  std::vector<bf16> expected;
  for (int r = 0; r < ranks.size(); ++r) {
    counts.push_back(r);
    expected.insert(expected.end(), static_cast<std::size_t>(r), bf16(static_cast<float>(r)));
  }
  const std::vector<bf16> own(static_cast<std::size_t>(ranks.rank()), bf16(static_cast<float>(ranks.rank())));
  std::vector<bf16> all(expected.size());
  ranks.all_gather(std::span<const bf16>(own), counts, std::span(all));
  EXPECT_EQ(std::vector<float>(all.begin(), all.end()), std::vector<float>(expected.begin(), expected.end()));
}

inline void texts_arrive_by_rank(Communicator& ranks) {
  const std::string own = ranks.rank() == 1 ? "" : std::string(static_cast<std::size_t>(ranks.rank()) + 1, 'x');
  const std::vector<std::string> texts = ranks.all_gather(own);
  ASSERT_EQ(std::ssize(texts), ranks.size());
  for (int r = 0; r < ranks.size(); ++r)
    EXPECT_EQ(texts[static_cast<std::size_t>(r)], r == 1 ? "" : std::string(static_cast<std::size_t>(r) + 1, 'x'));
}

inline void broadcast_is_the_roots(Communicator& ranks) {
  for (int root = 0; root < ranks.size(); ++root) {
    std::array<std::int64_t, 3> values{ranks.rank(), 0, 7 * ranks.rank()};
    ranks.broadcast(std::as_writable_bytes(std::span(values)), root);
    EXPECT_EQ(values, (std::array<std::int64_t, 3>{root, 0, 7 * root}));
  }
}

// Two threads of each rank, whose calls come in any order, each on its own communicator.
inline void duplicates_do_not_meet(Communicator& ranks) {
  const std::unique_ptr<Communicator> other = ranks.duplicate();
  const auto count_up = [](Communicator& group, double step) {
    for (int i = 0; i < 200; ++i) {
      std::array<double, 1> sum{step * i};
      group.all_reduce_sum(sum);
      ASSERT_EQ(sum[0], step * i * group.size());
    }
  };
  {
    const std::jthread thread([&] { count_up(*other, 1000); });
    count_up(ranks, 1);
  }
  ranks.barrier();
}

// As many exchanges as a few steps have, of changing kinds: nothing of one is taken for another's.
inline void a_long_run_repeats_to_the_bit(Communicator& ranks) {
  std::vector<float> state(1000, 0.0f);
  const ShardMap map(std::ssize(state), ranks.size());
  const ShardMap::Slice slice = map.slice(ranks.rank());
  const std::vector<float> gradient = values_of(ranks.rank(), state.size());
  std::vector<float> sum(static_cast<std::size_t>(slice.size()));
  for (int step = 0; step < 50; ++step) {
    ranks.reduce_scatter_sum(gradient, map.counts(), sum);
    const std::span<float> own = std::span(state).subspan(static_cast<std::size_t>(slice.begin), sum.size());
    for (std::size_t i = 0; i < sum.size(); ++i) own[i] += 0.25f * sum[i];
    ranks.all_gather(std::span<const float>(own), map.counts(), std::span(state));
    if (step % 7 == 0) ranks.barrier();
  }
  std::vector<float> expected(state.size(), 0.0f);
  const std::vector<float> step_sum = sum_in_rank_order<float>(ranks.size(), state.size());
  for (int step = 0; step < 50; ++step)
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += 0.25f * step_sum[i];
  EXPECT_EQ(state, expected);
}

// Rank s sends r + 2 s bytes to rank r, so that no two parts are alike.
inline void all_to_all_brings_each_its_part(Communicator& ranks) {
  const auto bytes = [](int from, int to) { return to + 2 * from; };
  const auto value = [](int from, int to) { return static_cast<std::byte>(10 * from + to); };
  std::vector<std::byte> send, expected;
  std::vector<std::int64_t> sent, received;
  for (int r = 0; r < ranks.size(); ++r) {
    sent.push_back(bytes(ranks.rank(), r));
    send.insert(send.end(), static_cast<std::size_t>(sent.back()), value(ranks.rank(), r));
    received.push_back(bytes(r, ranks.rank()));
    expected.insert(expected.end(), static_cast<std::size_t>(received.back()), value(r, ranks.rank()));
  }
  std::vector<std::byte> found(expected.size());
  ranks.all_to_all(send, sent, found, received);
  EXPECT_EQ(found, expected);
}

// Groups of every size, each of which does as much as its number says.
inline void groups_do_not_meet(Communicator& ranks) {
  for (int size = 1; size <= ranks.size(); ++size) {
    if (ranks.size() % size != 0) continue;
    const std::unique_ptr<Communicator> group = ranks.split(size);
    ASSERT_EQ(group->size(), size);
    EXPECT_EQ(group->rank(), ranks.rank() % size);
    const int first = ranks.rank() - group->rank();
    for (int i = 0; i <= first; ++i) {
      std::array<double, 1> sum{static_cast<double>(ranks.rank())};
      group->all_reduce_sum(sum);
      EXPECT_EQ(sum[0], size * first + size * (size - 1) / 2.0);
    }
    if (size > 1) {
      EXPECT_EQ(group->duplicate()->place().first, first);
    }
  }
  ranks.barrier();
}

using CollectiveCase = std::pair<const char*, void (*)(Communicator&)>;
inline constexpr CollectiveCase collective_cases[] = {
    {"place_is_sound", place_is_sound},
    {"all_reduce_adds_in_rank_order", all_reduce_adds_in_rank_order},
    {"reduce_scatter_fp32", reduce_scatter_gives_each_its_slice<float>},
    {"reduce_scatter_bf16", reduce_scatter_gives_each_its_slice<bf16>},
    {"reduce_scatter_and_all_gather_in_place", reduce_scatter_and_all_gather_in_place},
    {"all_gather_keeps_rank_order", all_gather_keeps_rank_order},
    {"texts_arrive_by_rank", texts_arrive_by_rank},
    {"broadcast_is_the_roots", broadcast_is_the_roots},
    {"duplicates_do_not_meet", duplicates_do_not_meet},
    {"a_long_run_repeats_to_the_bit", a_long_run_repeats_to_the_bit},
    {"all_to_all_brings_each_its_part", all_to_all_brings_each_its_part},
    {"groups_do_not_meet", groups_do_not_meet},
};

}  // namespace so::test
