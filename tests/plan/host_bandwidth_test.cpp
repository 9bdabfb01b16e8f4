#include "plan/simulate/host_bandwidth.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>

namespace so::test {
namespace {

TEST(HostBandwidth, AdamWHasMoreOfIt) {
  const std::size_t host = 1, to_host = 2, to_device = 4, link = 8;
  const HostBandwidth bandwidth(160, {140, 55, 55, 110}, std::numeric_limits<double>::infinity());
  EXPECT_EQ(bandwidth.rates(host), (BandwidthRates{140, 0, 0, 0}));
  EXPECT_EQ(bandwidth.rates(to_host | to_device), (BandwidthRates{0, 55, 55, 0}));
  EXPECT_NEAR(bandwidth.rates(to_device | link)[2], 55, 1e-9) << "who needs least gets all of that";
  const BandwidthRates& both = bandwidth.rates(host | to_host | to_device);
  EXPECT_NEAR(both[0] + both[1] + both[2], 160, 1e-9);
  EXPECT_GT(both[0], both[1] + both[2]);
  EXPECT_GT(both[1], both[2]) << "copies that read memory are the slowest";
  for (const std::size_t copies : {to_host, to_device, link})
    EXPECT_GT(bandwidth.rates(host | copies)[0], both[0]) << "what others do not take is AdamW's";
}

}  // namespace
}  // namespace so::test
