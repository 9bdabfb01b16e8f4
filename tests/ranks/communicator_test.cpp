#include "ranks/communicator.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

namespace so {
namespace {

TEST(SingleCommunicator, IsAloneAndChangesNothing) {
  const auto ranks = make_single_communicator();
  EXPECT_EQ(ranks->rank(), 0);
  EXPECT_EQ(ranks->size(), 1);
  std::array<double, 3> values{1.5, -0.0, std::numeric_limits<double>::infinity()};
  const auto before = values;
  ranks->all_reduce_sum(values);
  EXPECT_EQ(values, before);
  EXPECT_TRUE(std::signbit(values[1]));
  ranks->all_reduce_sum(std::span<double>());
  ranks->barrier();
}

}  // namespace
}  // namespace so
