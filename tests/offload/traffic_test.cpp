#include "offload/schedule/traffic.h"

#include <gtest/gtest.h>

namespace so::test {
namespace {

// A unit of 1,000 trained elements and 100 frozen ones, bf16 on the link, fp32 sums.
Traffic of(const UnitPlacement& row) { return traffic_of(row, {1000, 100}, {}); }

TEST(Traffic, TheHostsUpdateBringsGradientsAndTakesWeights) {
  EXPECT_EQ(of({.owner = Owner::device}).gradients, 0);
  EXPECT_EQ(of({.owner = Owner::device}).weights, 0);
  for (const ResidencyKind kind : {ResidencyKind::resident, ResidencyKind::gathered, ResidencyKind::callers}) {
    const Traffic host = of({.weights = kind});
    EXPECT_EQ(host.gradients, 2000);
    EXPECT_EQ(host.weights, 2000);
    EXPECT_EQ(host.use + host.cast + host.sum, 0);
  }
  EXPECT_EQ(of({.moved = true}).sum, 4000);
}

TEST(Traffic, WeightsThatAreNotThereComeForEachUse) {
  const Traffic streamed = of({.weights = ResidencyKind::streamed});
  EXPECT_EQ(streamed.use, 2200) << "frozen ones too";
  EXPECT_EQ(streamed.weights, 0);
  const Traffic masters = of({.weights = ResidencyKind::streamed_from_masters});
  EXPECT_EQ(masters.use, 4000);
  EXPECT_EQ(masters.cast, 6000);
  EXPECT_EQ(masters.weights, 0);
  const Traffic cast = of({.owner = Owner::device, .weights = ResidencyKind::from_masters});
  EXPECT_EQ(cast.cast, 6000);
  EXPECT_EQ(cast.use, 0);
  for (const Owner owner : {Owner::host, Owner::device}) {
    const Traffic gathered = of({.owner = owner, .weights = ResidencyKind::gathered_from_masters});
    EXPECT_EQ(gathered.use, owner == Owner::host ? 4000 : 0) << "the host's masters travel";
    EXPECT_EQ(gathered.cast, 6000);
    EXPECT_EQ(gathered.weights, 0);
  }
}

TEST(Traffic, AnUpdateReadsAndWritesAllState) {
  EXPECT_EQ(ElementBytes{}.update(), 28);
  EXPECT_EQ((ElementBytes{.state = 8}.update()), 20);
}

}  // namespace
}  // namespace so::test
