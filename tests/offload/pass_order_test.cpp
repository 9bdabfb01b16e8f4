// The order of a pass: forward, backward, and forward again where inputs are made again.
#include "offload/schedule/pass_order.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/errors.h"

namespace so::test {
namespace {

std::vector<int> units_of(const std::vector<BackwardStep>& steps) {
  std::vector<int> units;  // negative: forward again
  for (const auto [unit, forward_again] : steps) units.push_back(forward_again ? -unit : unit);
  return units;
}

TEST(BackwardSteps, RunUnitsForwardAgainWhereTheyComeToTheLastOfARun) {
  EXPECT_EQ(units_of(backward_steps(5, 0, {})), (std::vector<int>{4, 3, 2, 1, 0}));
  EXPECT_EQ(units_of(backward_steps(5, 2, {})), (std::vector<int>{4, 3, 2})) << "frozen below";
  EXPECT_EQ(units_of(backward_steps(8, 0, {false, false, true, true, false, true, false, false})),
            (std::vector<int>{7, 6, -4, 5, 4, -1, -2, 3, 2, 1, 0}));
  EXPECT_EQ(units_of(backward_steps(6, 2, {false, false, false, true, true, false})),
            (std::vector<int>{5, -2, -3, 4, 3, 2}));
  EXPECT_TRUE(backward_steps(3, 3, {}).empty()) << "all frozen";
  EXPECT_THROW(backward_steps(3, 1, {false, true, false}), Bug) << "nothing to make it from";
  EXPECT_THROW(backward_steps(3, 0, {true}), Bug);
}

std::vector<int> next(const PassOrder& order) {
  std::vector<int> units;
  for (std::size_t n = 1; n <= order.left(); ++n) units.push_back(order.ahead(n));
  return units;
}

TEST(PassOrder, FollowsTheModelsCalls) {
  PassOrder order(5, 0, {});
  const auto use = [&](int unit) {
    order.require(unit);
    order.release();
    return next(order);
  };
  EXPECT_EQ(order.left(), 0u);
  EXPECT_EQ(order.ahead(1), 0) << "a pass begins";
  EXPECT_EQ(use(0), (std::vector<int>{1, 2, 3, 4, 3, 2, 1, 0}));
  for (const int unit : {1, 2, 3}) use(unit);
  // The head, with the embedding that it shares, and once more in backward.
  order.require(4);
  order.require(0);
  order.release();
  order.release();
  EXPECT_EQ(use(4), (std::vector<int>{3, 2, 1, 0}));
  for (const int unit : {3, 2}) use(unit);
  EXPECT_EQ(use(1), (std::vector<int>{0}));
  order.end();
  EXPECT_EQ(order.left(), 0u);
  EXPECT_EQ(order.ahead(1), 0);
  for (const int unit : {0, 1, 2, 3, 4, 0}) use(unit);
  EXPECT_EQ(use(1), (std::vector<int>{2, 3, 4, 3, 2, 1, 0})) << "forward only, and again";
}

TEST(PassOrder, KnowsOfForwardPassesInBackward) {
  PassOrder order(6, 0, {false, false, true, false, true, false});
  const auto use = [&](int unit) {
    order.require(unit);
    order.release();
    return next(order);
  };
  for (const int unit : {0, 1, 2, 3, 4}) use(unit);
  EXPECT_EQ(use(5), (std::vector<int>{3, 4, 3, 1, 2, 1, 0}));
  EXPECT_EQ(use(3), (std::vector<int>{4, 3, 1, 2, 1, 0}));
  EXPECT_EQ(use(4), (std::vector<int>{3, 1, 2, 1, 0}));
  EXPECT_EQ(use(3), (std::vector<int>{1, 2, 1, 0}));
  EXPECT_EQ(order.ahead(5), 0) << "and the next pass begins";
}

}  // namespace
}  // namespace so::test
