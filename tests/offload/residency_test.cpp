#include "offload/schedule/residency.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "offload/schedule/gathered_units.h"
#include "offload/schedule/unit_places.h"

namespace so::test {
namespace {

using Kinds = std::vector<ResidencyKind>;
constexpr ResidencyKind resident = ResidencyKind::resident, streamed = ResidencyKind::streamed,
                        from_masters = ResidencyKind::from_masters, gathered = ResidencyKind::gathered;

ParameterLayout units(int count) {
  std::vector<Parameter> parameters;
  for (int unit = 0; unit < count; ++unit) parameters.push_back({std::to_string(unit), {8, 8}, true, unit, false});
  return ParameterLayout(std::move(parameters));
}

TEST(Residency, TheFirstAndTheLastUnitStay) {
  for (const int count : {1, 2, 5}) {
    const ParameterLayout layout = units(count);
    for (int unit = 0; unit < count; ++unit) EXPECT_EQ(layout.stays(unit), unit == 0 || unit == count - 1) << unit;
    EXPECT_EQ(residency_kinds(layout, count, from_masters, 0).front(), resident);
    EXPECT_EQ(residency_kinds(layout, count, from_masters, 0).back(), resident);
  }
}

TEST(Residency, FollowsTheOwner) {
  const ParameterLayout layout = units(7);
  EXPECT_EQ(residency_kinds(layout, 0, resident, 0), Kinds(7, resident));
  EXPECT_EQ(residency_kinds(layout, 3, from_masters, 0),
            (Kinds{resident, from_masters, from_masters, resident, resident, resident, resident}));
  EXPECT_EQ(residency_kinds(layout, 3, from_masters, 3),
            (Kinds{resident, from_masters, from_masters, streamed, streamed, streamed, resident}));
  EXPECT_THROW(residency_kinds(layout, 3, streamed, 0), Bug);
}

TEST(Residency, GatheredUnitsAreSpreadOverBothOwners) {
  const ParameterLayout layout = units(8);
  EXPECT_EQ(most_gathered_units(8), 6);
  for (const int device_units : {0, 3, 8}) {
    EXPECT_EQ(residency_kinds(layout, device_units, resident, 0, 6),
              (Kinds{resident, gathered, gathered, gathered, gathered, gathered, gathered, resident}));
    EXPECT_EQ(residency_kinds(layout, device_units, resident, 0, 2),
              (Kinds{resident, resident, resident, gathered, resident, resident, gathered, resident}));
  }
  EXPECT_THROW(residency_kinds(layout, 0, resident, 0, 7), Bug);
  EXPECT_THROW(residency_kinds(layout, 0, resident, 1, 1), Bug) << "streams beside";
  constexpr ResidencyKind cast = ResidencyKind::gathered_from_masters;
  EXPECT_EQ(residency_kinds(layout, 4, from_masters, 0, 6),
            (Kinds{resident, cast, cast, cast, gathered, gathered, gathered, resident}));
  EXPECT_EQ(residency_kinds(layout, 5, from_masters, 0, 2),
            (Kinds{resident, resident, resident, cast, resident, resident, gathered, resident}));
  EXPECT_EQ(residency_kinds(layout, 4, resident, 0, 6, from_masters),
            (Kinds{resident, gathered, gathered, gathered, cast, cast, cast, resident}));
  EXPECT_EQ(residency_kinds(layout, 4, from_masters, 0, 2, from_masters),
            (Kinds{resident, resident, resident, cast, resident, resident, cast, resident}));
  EXPECT_THROW(residency_kinds(layout, 3, gathered, 0, 0), Bug);
  EXPECT_THROW(residency_kinds(layout, 3, resident, 0, 0, from_masters), Bug) << "a rank has not all masters";
}

TEST(Residency, UnitsOfAKindTakeTurns) {
  using Slots = std::vector<int>;
  EXPECT_EQ(weight_slots(Kinds{resident, resident}), (Slots{-1, -1}));
  EXPECT_EQ(weight_slots(Kinds{resident, from_masters, from_masters, streamed, streamed, streamed, resident}),
            (Slots{-1, 2, 2, 0, 1, 0, -1}));
  EXPECT_EQ(weight_slots(Kinds{resident, gathered, resident, gathered, gathered, resident}),
            (Slots{-1, 3, -1, 4, 3, -1}));
}

TEST(UnitPlaces, SharedOnesLieBehindThoseOfAUnitAlone) {
  using Sizes = std::vector<std::int64_t>;
  UnitPlaces all = lay_out(Sizes{5, 7, 0, 2}, {});
  EXPECT_EQ(all.starts, (Sizes{0, 5, 12, 12}));
  EXPECT_EQ(all.size, 14);
  all = lay_out(Sizes{5, 7, 9, 3, 2}, in_turn({false, true, true, true, false}, 2));
  EXPECT_EQ(all.starts, (Sizes{0, 7, 14, 7, 5}));
  EXPECT_EQ(all.size, 5 + 2 + 7 + 9);
  EXPECT_EQ(lay_out({}, {}).size, 0);
  EXPECT_THROW(lay_out(Sizes{1, 2}, std::vector<int>{-1}), Bug);
}

}  // namespace
}  // namespace so::test
