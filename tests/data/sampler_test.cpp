#include "data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "data_test_util.h"
#include "support/paths.h"

namespace so {
namespace {

TEST(EpochOrder, IsTheDocumentedPermutation) {
  const auto fixture = nlohmann::json::parse(test::read_file(test::fixtures() + "/data/order.json"));
  ASSERT_EQ(fixture.at("cases").size(), 6u);
  for (const auto& c : fixture.at("cases"))
    EXPECT_EQ(epoch_order(c.at("count"), c.at("seed").get<std::uint64_t>(), c.at("epoch"), true),
              c.at("order").get<std::vector<std::int64_t>>());
}

TEST(EpochOrder, PermutesAndDiffersBetweenEpochsAndSeeds) {
  std::vector<std::int64_t> identity(1000);
  std::iota(identity.begin(), identity.end(), std::int64_t{0});
  const auto first = epoch_order(1000, 1, 0, true), second = epoch_order(1000, 1, 1, true);
  const auto other = epoch_order(1000, 2, 0, true);
  EXPECT_NE(first, second);
  EXPECT_NE(first, other);
  EXPECT_NE(first, identity);
  for (auto order : {first, second, other}) {
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, identity);
  }
  EXPECT_EQ(epoch_order(1000, 1, 3, false), identity);
  EXPECT_TRUE(epoch_order(0, 1, 0, true).empty());
}

// Each of 4 elements should come to each place equally often: 6000 epochs give 1500 each, with a standard deviation of
// sqrt(6000 * 1/4 * 3/4) = 33.5. The seed is fixed, so the test cannot fail by chance; six deviations tell a biased
// shuffle (exchanging each element with any element is off by up to 258) from a fair one.
TEST(EpochOrder, FavoursNoPlace) {
  int counts[4][4] = {};
  for (int epoch = 0; epoch < 6000; ++epoch) {
    const auto order = epoch_order(4, 11, epoch, true);
    for (std::size_t place = 0; place < 4; ++place) ++counts[place][order[place]];
  }
  for (const auto& row : counts)
    for (const int count : row) EXPECT_NEAR(count, 1500, 200);
}

}  // namespace
}  // namespace so
