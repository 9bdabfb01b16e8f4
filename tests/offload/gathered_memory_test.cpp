// The memory that an engine with gathered units books on each of several ranks, and the settings that it refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"
#include "offload/counted_settings.h"
#include "offload/ranks_rig.h"
#include "offload/schedule/placement.h"
#include "ranks/shard_map.h"

namespace so::test {
namespace {

// The first of four ranks, which has the most; asked as a plan asks, of a device without memory.
TEST(GatheredMemory, ARankHoldsItsShareAndTwoPlaces) {
  ThreadPool pool("test", {0}, false);
  const auto booked = [&](const CountedSettings& settings, int size) {
    const auto device = make_dry_device(DeviceKind::cuda);
    const auto ranks = make_dry_communicator(size);
    const OffloadEngine engine(*device, pool, *ranks, layered(), settings.of(layered(), size));
    return device->ledger().peaks(MemoryKind::device);
  };
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int size : {2, 4})
      for (const int gathered : {1, 4, 5}) {
        CountedSettings settings = gathered_settings(gathered);
        settings.formats = model_formats(dtype);
        settings.formats.gradients = DType::f32;
        const std::vector<UnitPlacement> units = settings.of(layered(), size).placement.units;
        std::int64_t stay = 0, sliced = 0;
        std::vector<std::int64_t> places(gather_places);
        for (int unit = 0, turn = 0; unit < layered().units(); ++unit) {
          const std::int64_t elements = layered().unit_range(unit).size();
          (units[static_cast<std::size_t>(unit)].sliced ? sliced : stay) += elements;
          if (!units[static_cast<std::size_t>(unit)].sliced) continue;
          std::int64_t& place = places[static_cast<std::size_t>(turn++ % gather_places)];
          place = std::max(place, elements);
        }
        const auto element = static_cast<std::int64_t>(size_of(dtype));
        auto held = booked(settings, size);
        EXPECT_EQ(held["weights"], static_cast<std::size_t>((stay + places[0] + places[1]) * element));
        EXPECT_EQ(held["gradients"], static_cast<std::size_t>((stay + places[0] + places[1]) * 4));
        // A slice of a bucket is longer than its share by less than an alignment.
        const std::int64_t longest = sliced + 3 * gathered * size * ShardMap::default_alignment;
        for (const auto& [name, bytes] :
             {std::pair{"weight slices", element}, std::pair{"gradient slices", std::int64_t{4}}}) {
          const auto slices = static_cast<std::int64_t>(held[name]);
          EXPECT_GE(slices * size, sliced * bytes) << name;
          EXPECT_LT(slices * size, longest * bytes) << name;
        }
        settings.counts.gathered_units = 0;
        held = booked(settings, size);
        EXPECT_EQ(held["weights"], static_cast<std::size_t>((stay + sliced) * element));
        EXPECT_EQ(held["gradients"], static_cast<std::size_t>((stay + sliced) * 4));
        EXPECT_EQ(held.count("weight slices") + held.count("gradient slices"), 0u);
      }
}

TEST(GatheredMemory, WhatDoesNotGoTogetherIsRefused) {
  ThreadPool pool("test", {0}, false);
  const auto refused = [&](int size, CountedSettings settings) {
    const auto device = make_dry_device(DeviceKind::cpu);
    const auto ranks = make_dry_communicator(size);
    EXPECT_THROW(OffloadEngine(*device, pool, *ranks, layered(), settings.of(layered(), size)), Bug);
  };
  refused(1, gathered_settings(1));
  refused(2, gathered_settings(6));
  CountedSettings settings = gathered_settings(1);
  settings.counts.streamed_units = 1;
  refused(2, settings);
  settings = gathered_settings(0, 2);  // whole weights, of which a rank has no masters
  settings.counts.cast_weights = true;
  refused(2, settings);
  settings.counts.cast_weights = false;
  settings.counts.send_masters = true;
  refused(2, settings);
}

}  // namespace
}  // namespace so::test
