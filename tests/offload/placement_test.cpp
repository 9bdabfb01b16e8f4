#include "offload/schedule/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "offload/counted_settings.h"
#include "offload/schedule/unit_places.h"

namespace so::test {
namespace {

using Kinds = std::vector<ResidencyKind>;
using Bits = std::vector<bool>;
using Slots = std::vector<int>;
constexpr ResidencyKind resident = ResidencyKind::resident, streamed = ResidencyKind::streamed,
                        from_masters = ResidencyKind::from_masters, gathered = ResidencyKind::gathered,
                        streamed_from_masters = ResidencyKind::streamed_from_masters,
                        cast = ResidencyKind::gathered_from_masters, callers = ResidencyKind::callers;

std::vector<UnitPlacement> rows(int units, const Counts& counts, int ranks = 1) {
  return make_rows(std::vector(static_cast<std::size_t>(units), Trained::all), ranks, counts);
}

template <class Field, class Value = std::remove_cvref_t<std::invoke_result_t<Field, UnitPlacement>>>
std::vector<Value> column(const std::vector<UnitPlacement>& rows, const Field& field) {
  std::vector<Value> values;
  for (const UnitPlacement& row : rows) values.push_back(std::invoke(field, row));
  return values;
}
Kinds weights(int units, const Counts& counts, int ranks = 1) {
  return column(rows(units, counts, ranks), &UnitPlacement::weights);
}
// Which units stream.
Bits streams(int units, int device_units, int count) {
  return column(rows(units, {.device_units = device_units, .streamed_units = count}),
                [](const UnitPlacement& row) { return row.weights == streamed; });
}

TEST(Placement, TheFirstAndTheLastUnitStay) {
  for (const int count : {1, 2, 5})
    for (const Counts& counts : {Counts{.device_units = count, .cast_weights = true},
                                 Counts{.streamed_units = most_streamed_units(count, 0), .move_gradients = true}}) {
      const std::vector<UnitPlacement> all = rows(count, counts);
      for (const UnitPlacement& row : {all.front(), all.back()}) {
        EXPECT_EQ(row.weights, resident);
        EXPECT_FALSE(row.moved);
      }
    }
}

TEST(Placement, WeightsFollowTheOwner) {
  EXPECT_EQ(weights(7, {}), Kinds(7, resident));
  EXPECT_EQ(weights(7, {.device_units = 3, .cast_weights = true}),
            (Kinds{resident, from_masters, from_masters, resident, resident, resident, resident}));
  const Counts counts{.device_units = 3, .streamed_units = 3, .cast_weights = true};
  EXPECT_EQ(weights(7, counts), (Kinds{resident, from_masters, from_masters, streamed, streamed, streamed, resident}));
  EXPECT_EQ(
      weights(7, {.device_units = 2, .streamed_units = 2, .cast_weights = true, .send_masters = true}),
      (Kinds{resident, from_masters, resident, streamed_from_masters, resident, streamed_from_masters, resident}));
  for (int unit = 0; unit < 7; ++unit)
    EXPECT_EQ(rows(7, counts)[static_cast<std::size_t>(unit)].owner, unit < 3 ? Owner::device : Owner::host);
  EXPECT_EQ(weights(4, {.device_units = 2, .callers = true}), (Kinds{resident, resident, callers, callers}));
}

TEST(Placement, GatheredUnitsAreSpreadOverBothOwners) {
  EXPECT_EQ(most_gathered_units(8), 6);
  const auto of = [](Counts counts) { return weights(8, counts, 2); };
  for (const int device_units : {0, 3, 8}) {
    EXPECT_EQ(of({.device_units = device_units, .gathered_units = 6}),
              (Kinds{resident, gathered, gathered, gathered, gathered, gathered, gathered, resident}));
    EXPECT_EQ(of({.device_units = device_units, .gathered_units = 2}),
              (Kinds{resident, resident, resident, gathered, resident, resident, gathered, resident}));
  }
  EXPECT_EQ(of({.device_units = 4, .gathered_units = 6, .cast_weights = true}),
            (Kinds{resident, cast, cast, cast, gathered, gathered, gathered, resident}));
  EXPECT_EQ(of({.device_units = 5, .gathered_units = 2, .cast_weights = true}),
            (Kinds{resident, resident, resident, cast, resident, resident, gathered, resident}));
  EXPECT_EQ(of({.device_units = 4, .gathered_units = 6, .send_masters = true}),
            (Kinds{resident, gathered, gathered, gathered, cast, cast, cast, resident}));
  EXPECT_EQ(of({.device_units = 4, .gathered_units = 2, .cast_weights = true, .send_masters = true}),
            (Kinds{resident, resident, resident, cast, resident, resident, cast, resident}));
}

TEST(Placement, WhatDoesNotGoTogetherIsABug) {
  const std::vector all(5, Trained::all);
  for (const auto& [ranks, counts] :
       {std::pair{2, Counts{.gathered_units = 4}}, std::pair{2, Counts{.streamed_units = 1, .gathered_units = 1}},
        std::pair{1, Counts{.gathered_units = 1}}, std::pair{2, Counts{.send_masters = true}},
        std::pair{2, Counts{.device_units = 2, .cast_weights = true}}, std::pair{2, Counts{.callers = true}},
        std::pair{1, Counts{.streamed_units = 1, .callers = true}}, std::pair{1, Counts{.device_units = 6}},
        std::pair{1, Counts{.device_units = -1}}, std::pair{1, Counts{.device_units = 4, .streamed_units = 1}}})
    EXPECT_THROW(make_rows(all, ranks, counts), Bug)
        << ranks << " ranks, " << counts.device_units << " " << counts.streamed_units << " " << counts.gathered_units;
  EXPECT_THROW(make_rows(all, 1, {}, std::vector(4, Input::kept)), Bug);
}

TEST(Placement, StreamedUnitsAreSpreadEvenlyAmongThoseThatMay) {
  EXPECT_EQ(streams(6, 0, 4), (Bits{false, true, true, true, true, false}));
  EXPECT_EQ(streams(6, 0, 2), (Bits{false, false, true, false, true, false}));
  EXPECT_EQ(streams(6, 3, 2), (Bits{false, false, false, true, true, false}));
  EXPECT_EQ(streams(6, 3, 0), Bits(6, false));
  EXPECT_EQ(most_streamed_units(6, 0), 4);
  EXPECT_EQ(most_streamed_units(6, 5), 0);
  EXPECT_EQ(most_streamed_units(6, 6), 0);
  for (const int units : {1, 2, 3, 41})
    for (int owned = 0; owned <= units; ++owned)
      for (int count = 0; count <= most_streamed_units(units, owned); ++count) {
        const Bits bits = streams(units, owned, count);
        EXPECT_EQ(std::count(bits.begin(), bits.end(), true), count);
      }
}

TEST(Placement, FrozenParametersHaveNoMasters) {
  const std::vector units{Trained::none, Trained::none, Trained::some, Trained::all, Trained::all};
  const std::vector<UnitPlacement> owned = make_rows(units, 1, {.device_units = 5, .cast_weights = true});
  EXPECT_EQ(column(owned, &UnitPlacement::weights), (Kinds{resident, resident, resident, from_masters, resident}));
  const std::vector<UnitPlacement> moved = make_rows(units, 1, {.move_gradients = true});
  EXPECT_EQ(column(moved, &UnitPlacement::moved), (Bits{false, false, true, true, false}));
}

TEST(Placement, UnitsOfAKindTakeTurns) {
  const auto turns = [](const std::vector<UnitPlacement>& units) {
    return turns_of({.units = units, .ranks = 1}).weights;
  };
  EXPECT_EQ(turns(rows(2, {})), (Slots{-1, -1}));
  EXPECT_EQ(turns(rows(7, {.device_units = 3, .streamed_units = 3, .cast_weights = true})),
            (Slots{-1, 2, 2, 0, 1, 0, -1}));
  EXPECT_EQ(turns(rows(6, {.gathered_units = 3}, 2)), (Slots{-1, -1, 3, 4, 3, -1}));
  EXPECT_EQ(turns(rows(4, {.callers = true})), Slots(4, -1));
}

TEST(Placement, GradientsTakeTurnsAmongTheirKind) {
  const auto place = [](std::vector<Trained> units, const Counts& counts, int ranks) {
    return Placement{.units = make_rows(units, ranks, counts), .ranks = ranks};
  };
  const auto sliced = [](const Placement& p) { return column(p.units, &UnitPlacement::sliced); };
  Placement p = place(std::vector(7, Trained::all), {.device_units = 2}, 1);
  EXPECT_EQ(turns_of(p).gradients, Slots(7, -1));
  EXPECT_EQ(turns_of(p).moving, Slots(7, -1));
  p = place(std::vector(7, Trained::all), {.device_units = 2, .move_gradients = true}, 1);
  EXPECT_EQ(turns_of(p).gradients, (Slots{-1, -1, 0, 1, 0, 1, -1}));
  EXPECT_EQ(turns_of(p).moving, turns_of(p).gradients);
  EXPECT_EQ(turns_of(p).slices, Slots(7, -1));
  EXPECT_EQ(sliced(p), Bits(7, false));
  p = place(std::vector(9, Trained::all), {.device_units = 2, .move_gradients = true}, 2);
  EXPECT_EQ(turns_of(p).gradients, (Slots{-1, -1, 0, 1, 0, 1, 0, 1, -1}));
  EXPECT_EQ(turns_of(p).slices, (Slots{-1, -1, 0, 1, 2, 3, 0, 1, -1}));
  EXPECT_EQ(turns_of(p).moving, turns_of(p).slices);
  EXPECT_EQ(sliced(p), (Bits{false, false, true, true, true, true, true, true, false}));
  std::vector some(9, Trained::all);  // what is frozen has no gradient that could move
  some[3] = some[5] = Trained::none;
  p = place(some, {.device_units = 2, .move_gradients = true}, 2);
  EXPECT_EQ(turns_of(p).gradients, (Slots{-1, -1, 0, -1, 1, -1, 0, 1, -1}));
  EXPECT_EQ(turns_of(p).moving, (Slots{-1, -1, 0, -1, 1, -1, 2, 3, -1}));
  p = place(std::vector(9, Trained::all), {.device_units = 5, .gathered_units = 7, .move_gradients = true}, 2);
  EXPECT_EQ(turns_of(p).gradients, (Slots{-1, 0, 1, 0, 1, 0, 1, 0, -1}));
  EXPECT_EQ(turns_of(p).moving, (Slots{-1, -1, -1, -1, -1, 0, 1, 2, -1}));
  EXPECT_EQ(sliced(p), (Bits{false, true, true, true, true, true, true, true, false}));
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
