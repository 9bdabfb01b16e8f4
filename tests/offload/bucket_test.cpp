#include "offload/schedule/bucket.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "offload/counted_settings.h"

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
