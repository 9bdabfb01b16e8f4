// The search for how AdamW goes through memory, over times that are made up.
#include <gtest/gtest.h>

#include "plan/machine/measure_host.h"

namespace so {
namespace {

// Seconds of an update with fixed gains for a distance and for a tile.
double seconds_with(const AdamWTuning& tuning, std::int64_t distance, double gain, std::int64_t tile,
                    double tile_gain) {
  return (tuning.prefetch == distance ? 1 - gain : 1) * (tuning.tile == tile ? 1 - tile_gain : 1);
}

TEST(FindTuning, KeepsTheDefaultWhereNothingIsClearlyQuicker) {
  EXPECT_EQ(find_tuning([](const AdamWTuning&) { return 1.0; }), AdamWTuning());
  EXPECT_EQ(find_tuning([](const AdamWTuning& t) { return seconds_with(t, 512, 0.02, 1 << 15, 0.02); }), AdamWTuning());
}

TEST(FindTuning, TakesTheBestDistanceAndWithItTheBestTile) {
  const AdamWTuning far = find_tuning([](const AdamWTuning& t) { return seconds_with(t, 512, 0.1, 1 << 17, 0.1); });
  EXPECT_EQ(far, (AdamWTuning{.tile = 1 << 17, .prefetch = 512}));
  // Better with every step further.
  const AdamWTuning most =
      find_tuning([](const AdamWTuning& t) { return 1.0 / (1 + static_cast<double>(t.prefetch)); });
  EXPECT_EQ(most.prefetch, 2048);
  EXPECT_EQ(most.tile, AdamWTuning().tile);
  const AdamWTuning tile = find_tuning([](const AdamWTuning& t) { return seconds_with(t, 1, 0, 1 << 11, 0.2); });
  EXPECT_EQ(tile, (AdamWTuning{.tile = 1 << 11}));
}

// A neighbour that is busy for the default's updates of one round, or of the machine's first half, decides nothing.
TEST(FindTuning, ALuckyRoundIsNotEnough) {
  int calls = 0;
  EXPECT_EQ(find_tuning([&](const AdamWTuning& t) { return t == AdamWTuning() && calls++ < 12 ? 2.0 : 1.0; }),
            AdamWTuning());
  calls = 0;
  EXPECT_EQ(find_tuning([&](const AdamWTuning&) { return calls++ < 40 ? 2.0 : 1.0; }), AdamWTuning());
}

TEST(FindTuning, GoesNowhereThatIsNotUsable) {
  find_tuning([](const AdamWTuning& t) {
    EXPECT_TRUE(t.usable());
    return 1.0 / static_cast<double>(t.prefetch + t.tile);
  });
}

}  // namespace
}  // namespace so
