#include "ranks/shard_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace so {
namespace {

TEST(ShardMap, CoversInOrderAlignedAndBalanced) {
  for (const std::int64_t elements : {0, 1, 15, 16, 17, 31, 64, 100, 1000, 4096, 1'048'577})
    for (const int ranks : {1, 2, 3, 4, 7, 8, 64, 1024})
      for (const std::int64_t alignment : {1, 16, 64}) {
        SCOPED_TRACE(testing::Message() << elements << " over " << ranks << ", aligned to " << alignment);
        const ShardMap map(elements, ranks, alignment);
        ASSERT_EQ(std::ssize(map.counts()), ranks);
        std::int64_t end = 0;
        for (int r = 0; r < ranks; ++r) {
          const ShardMap::Slice slice = map.slice(r);
          ASSERT_EQ(slice.begin, end) << "rank " << r;
          ASSERT_EQ(slice.size(), map.counts()[static_cast<std::size_t>(r)]);
          ASSERT_GE(slice.size(), 0);
          if (slice.size() > 0) {
            ASSERT_EQ(slice.begin % alignment, 0);
            ASSERT_EQ(map.owner(slice.begin), r);
            ASSERT_EQ(map.owner(slice.end - 1), r);
          }
          end = slice.end;
        }
        ASSERT_EQ(end, elements);
        const auto [least, most] = std::minmax_element(map.counts().begin(), map.counts().end());
        ASSERT_LE(*most - *least, 2 * alignment - 1);  // one alignment, and what the last one lacks
      }
}

TEST(ShardMap, GivesTheLongerSlicesToTheFirstRanks) {
  const ShardMap map(16 * 7 - 3, 3);
  EXPECT_EQ(map.slice(0), (ShardMap::Slice{0, 48}));
  EXPECT_EQ(map.slice(1), (ShardMap::Slice{48, 80}));
  EXPECT_EQ(map.slice(2), (ShardMap::Slice{80, 109}));
}

TEST(ShardMap, CutsWhereItMay) {
  const auto blocks_of_100 = [](std::int64_t at) { return at == 350 ? at : at / 100 * 100; };
  const ShardMap map(350, 4, blocks_of_100);  // evenly 96, 192, 272, 350
  EXPECT_EQ(map.slice(0), (ShardMap::Slice{0, 0}));
  EXPECT_EQ(map.slice(1), (ShardMap::Slice{0, 100}));
  EXPECT_EQ(map.slice(2), (ShardMap::Slice{100, 200}));
  EXPECT_EQ(map.slice(3), (ShardMap::Slice{200, 350}));
  EXPECT_EQ(map.longest(), 150);
  EXPECT_EQ(map.owner(99), 1);
  EXPECT_THROW(ShardMap(350, 4, [](std::int64_t at) { return at / 100 * 100; }), Bug) << "the end is lost";
}

TEST(ShardMap, RefusesWhatIsNotThere) {
  const ShardMap map(100, 2);
  EXPECT_THROW(map.slice(2), Bug);
  EXPECT_THROW(map.slice(-1), Bug);
  EXPECT_THROW(map.owner(100), Bug);
  EXPECT_THROW(map.owner(-1), Bug);
  EXPECT_THROW(ShardMap(100, 0), Bug);
  EXPECT_THROW(ShardMap(-1, 2), Bug);
  EXPECT_THROW(ShardMap(100, 2, 0), Bug);
}

}  // namespace
}  // namespace so
