#include "offload/schedule/bucket.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "offload/counted_settings.h"
#include "offload/exchange.h"
#include "ranks/shard_map.h"

namespace so {
namespace {

using test::owned_rows;

using Verb = void (Bucket::*)();
const std::vector<std::pair<std::string, Verb>> verbs = {
    {"land", &Bucket::land},       {"defer", &Bucket::defer}, {"speculate", &Bucket::speculate},
    {"preview", &Bucket::preview}, {"owe", &Bucket::owe},     {"commit", &Bucket::commit},
    {"discard", &Bucket::discard}, {"redo", &Bucket::redo},   {"depart", &Bucket::depart},
    {"settle", &Bucket::settle}};

using enum BucketState;

// The legal transitions; every other pair is a Bug.
const std::map<std::pair<BucketState, std::string>, BucketState> legal = {
    {{idle, "land"}, landing},
    {{landing, "land"}, landing},
    {{landing, "defer"}, deferred},
    {{landing, "discard"}, discarded},
    {{deferred, "speculate"}, speculated},
    {{deferred, "preview"}, previewed},
    {{deferred, "owe"}, owing},
    {{previewed, "owe"}, owing},
    {{deferred, "commit"}, committed},
    {{speculated, "commit"}, committed},
    {{owing, "commit"}, committed},
    {{deferred, "discard"}, discarded},
    {{speculated, "discard"}, discarded},
    {{previewed, "discard"}, discarded},
    {{discarded, "redo"}, deferred},
    {{committed, "depart"}, returning},
    {{discarded, "depart"}, returning},
    {{returning, "settle"}, idle},
    {{discarded, "settle"}, idle},
};

// A bucket brought into a state by legal verbs.
Bucket in_state(BucketState state) {
  const std::map<BucketState, std::vector<Verb>> ways = {
      {idle, {}},
      {landing, {&Bucket::land}},
      {deferred, {&Bucket::land, &Bucket::defer}},
      {speculated, {&Bucket::land, &Bucket::defer, &Bucket::speculate}},
      {previewed, {&Bucket::land, &Bucket::defer, &Bucket::preview}},
      {owing, {&Bucket::land, &Bucket::defer, &Bucket::preview, &Bucket::owe}},
      {committed, {&Bucket::land, &Bucket::defer, &Bucket::commit}},
      {discarded, {&Bucket::land, &Bucket::discard}},
      {returning, {&Bucket::land, &Bucket::defer, &Bucket::commit, &Bucket::depart}},
  };
  Bucket bucket(3, {64, 128}, Owner::host);
  for (const Verb verb : ways.at(state)) (bucket.*verb)();
  return bucket;
}

TEST(Bucket, EveryVerbInEveryState) {
  int legal_seen = 0;
  for (int i = 0; i < bucket_states; ++i) {
    const auto state = static_cast<BucketState>(i);
    for (const auto& [name, verb] : verbs) {
      SCOPED_TRACE(std::string(name_of(state)) + ": " + name);
      Bucket bucket = in_state(state);
      ASSERT_EQ(bucket.state(), state);
      const auto to = legal.find({state, name});
      if (to != legal.end()) {
        (bucket.*verb)();
        EXPECT_EQ(bucket.state(), to->second);
        ++legal_seen;
        continue;
      }
      try {
        (bucket.*verb)();
        ADD_FAILURE() << "was allowed";
      } catch (const Bug& bug) {
        const std::string message = bug.what();
        for (const std::string& part : {std::string("bucket 3"), name, std::string(name_of(state))})
          EXPECT_NE(message.find(part), std::string::npos) << message;
      }
      EXPECT_EQ(bucket.state(), state) << "a refused verb must change nothing";
    }
  }
  EXPECT_EQ(legal_seen, static_cast<int>(legal.size()));
}

// Random parameters in random units: vectors, matrices, joined ones; from a few elements to thousands.
ParameterLayout random_layout(std::mt19937& random) {
  const auto upto = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)) + 1; };
  std::vector<Parameter> parameters;
  int unit = 0;
  for (int i = 0, n = upto(24); i < n; ++i) {
    const bool next = i > 0 && random() % 3 == 0;
    if (next) ++unit;
    Parameter p{std::to_string(i), {upto(100)}, random() % 2 == 0, unit, i > 0 && !next && random() % 3 == 0};
    if (random() % 2 == 0) p.shape.push_back(upto(100));
    parameters.push_back(p);
  }
  return ParameterLayout(std::move(parameters));
}

std::vector<Range> ranges(const std::vector<Bucket>& buckets) {
  std::vector<Range> all;
  for (const Bucket& bucket : buckets) all.push_back(bucket.range());
  return all;
}

TEST(MakeBuckets, CoverTheRangeAlignedAndNeverTooLarge) {
  std::mt19937 random(7);
  int cut_inside = 0, joined_units = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const ParameterLayout layout = random_layout(random);
    const std::int64_t most = ParameterLayout::alignment << (random() % 12);
    SCOPED_TRACE("trial " + std::to_string(trial) + ", at most " + std::to_string(most));
    std::int64_t at = 0;
    const int device_units = static_cast<int>(random() % static_cast<unsigned>(layout.units() + 1));
    const std::int64_t of_device =
        device_units == layout.units() ? layout.elements() : layout.unit_range(device_units).begin;
    const std::vector<Bucket> made = make_buckets(layout, most, owned_rows(layout, device_units));
    const std::vector<Range> buckets = ranges(made);
    for (std::size_t i = 0; i < made.size(); ++i) {
      ASSERT_EQ(made[i].index(), static_cast<int>(i));
      ASSERT_EQ(made[i].owner(), made[i].range().end <= of_device ? Owner::device : Owner::host);
      if (made[i].owner() == Owner::host) {
        ASSERT_GE(made[i].range().begin, of_device);
      }
    }
    for (const Range bucket : buckets) {
      ASSERT_EQ(bucket.begin, at);
      ASSERT_GT(bucket.size(), 0);
      ASSERT_LE(bucket.size(), most);
      ASSERT_EQ(bucket.begin % ParameterLayout::alignment, 0);
      at = bucket.end;
    }
    ASSERT_EQ(at, layout.elements());
    // Cuts inside a unit only where the unit is larger than a bucket.
    for (int unit = 0; unit < layout.units(); ++unit) {
      const Range range = layout.unit_range(unit);
      bool inside = false;
      for (const Range bucket : buckets) inside |= bucket.begin > range.begin && bucket.begin < range.end;
      if (inside) {
        ++cut_inside;
        ASSERT_GT(range.size(), most) << "unit " << unit << " was cut although it fits";
      }
    }
    joined_units += static_cast<int>(buckets.size()) < layout.units() ? 1 : 0;
  }
  EXPECT_GT(cut_inside, 50);
  EXPECT_GT(joined_units, 20);
}

// Matrices with blocks of 256 elements, of whole rows, or without, and vectors between them.
ParameterLayout random_blocks(std::mt19937& random) {
  std::vector<Parameter> parameters;
  for (int i = 0, unit = 0; i < 12; ++i) {
    if (i > 0 && random() % 3 == 0) ++unit;
    const std::int64_t columns = 64 * (1 + static_cast<std::int64_t>(random() % 3));
    Parameter p{.name = std::to_string(i), .shape = {1 + static_cast<std::int64_t>(random() % 700)}, .unit = unit};
    if (random() % 4 != 0) p.shape.push_back(columns);
    p.cut = std::vector<std::int64_t>{1, 256, 128 * columns}[random() % 3];
    parameters.push_back(p);
  }
  return ParameterLayout(std::move(parameters));
}

// Whether it lies at the end of a block, or where no parameter has one.
bool is_whole(const ParameterLayout& layout, std::int64_t cut) {
  for (int p = 0; p < layout.count(); ++p)
    if (cut > layout.range(p).begin && cut < layout.range(p).end)
      return (cut - layout.range(p).begin) % layout.parameter(p).cut == 0;
  return true;
}

TEST(MakeBuckets, NeitherBucketsNorSlicesCutABlock) {
  std::mt19937 random(10);
  int cut_buckets = 0, cut_slices = 0, empty = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const ParameterLayout layout = random_blocks(random);
    const std::int64_t most = 128 * 192 + ParameterLayout::alignment * static_cast<std::int64_t>(random() % 500);
    SCOPED_TRACE(testing::Message() << "trial " << trial << ", at most " << most);
    std::int64_t at = 0;
    for (const Bucket& bucket : make_buckets(layout, most, owned_rows(layout, 0), random() % 2 == 0)) {
      const Range range = bucket.range();
      ASSERT_EQ(range.begin, at);
      ASSERT_GT(range.size(), 0);
      ASSERT_LE(range.size(), most);
      ASSERT_TRUE(is_whole(layout, range.end)) << range.end;
      cut_buckets += layout.unit_range(layout.unit_of(range.end - 1)).end == range.end ? 0 : 1;
      at = range.end;
      for (const int ranks : {1, 2, 3, 8}) {
        const ShardMap slices = slices_of(layout, range, ranks);
        for (int rank = 0; rank < ranks; ++rank) {
          const ShardMap::Slice slice = slices.slice(rank);
          ASSERT_TRUE(is_whole(layout, range.begin + slice.end)) << slice.end << " of " << range.begin;
          ASSERT_LE(slice.size(), slices.longest());
          (slice.size() == 0 ? empty : cut_slices) += rank < ranks - 1 ? 1 : 0;
        }
        ASSERT_EQ(slices.slice(ranks - 1).end, range.size());
      }
    }
    ASSERT_EQ(at, layout.elements());
  }
  EXPECT_GT(cut_buckets, 500);
  EXPECT_GT(cut_slices, 5000);
  EXPECT_GT(empty, 100);
}

TEST(MakeBuckets, WithoutBlocksPiecesAreEqualAndSlicesThoseOfTheRange) {
  const ParameterLayout layout({{.name = "a", .shape = {1000, 77}}});
  for (std::int64_t most = 64; most < layout.elements(); most += 64) {
    const std::vector<Range> buckets = ranges(make_buckets(layout, most, owned_rows(layout, 0)));
    const auto pieces = (layout.elements() + most - 1) / most;
    ASSERT_EQ(std::ssize(buckets), pieces);
    for (std::int64_t i = 0; i < pieces; ++i)
      ASSERT_EQ(buckets[static_cast<std::size_t>(i)].begin, layout.elements() * i / pieces / 64 * 64);
    for (const int ranks : {1, 2, 7}) {
      const ShardMap expected(buckets.back().size(), ranks), found = slices_of(layout, buckets.back(), ranks);
      ASSERT_TRUE(std::equal(expected.counts().begin(), expected.counts().end(), found.counts().begin()));
      ASSERT_EQ(expected.longest(), expected.counts()[0]);
    }
  }
}

TEST(MakeBuckets, RefusesABlockThatIsLargerThanABucket) {
  const ParameterLayout layout({{.name = "a", .shape = {600}, .cut = 256}});
  EXPECT_EQ(ranges(make_buckets(layout, 256, owned_rows(layout, 0))),
            (std::vector<Range>{{0, 256}, {256, 512}, {512, 640}}));
  EXPECT_THROW(make_buckets(layout, 192, owned_rows(layout, 0)), Bug);
}

TEST(MakeBuckets, WholeModelInOneIfItFits) {
  std::mt19937 random(8);
  const ParameterLayout layout = random_layout(random);
  for (const int device_units : {0, layout.units()})
    EXPECT_EQ(ranges(make_buckets(layout, layout.elements(), owned_rows(layout, device_units))),
              (std::vector<Range>{{0, layout.elements()}}));
}

TEST(MakeBuckets, RefusesSizesThatAreNoMultipleOfTheAlignment) {
  std::mt19937 random(9);
  const ParameterLayout layout = random_layout(random);
  for (const std::int64_t elements : {0, -64, 1, 63, 65, 100})
    EXPECT_THROW(make_buckets(layout, elements, owned_rows(layout, 0)), Bug) << elements;
  EXPECT_THROW(make_buckets(layout, 64, {}), Bug) << "no owners";
}

}  // namespace
}  // namespace so
