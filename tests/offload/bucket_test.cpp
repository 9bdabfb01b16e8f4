#include "offload/bucket.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace so {
namespace {

using Verb = void (Bucket::*)();
const std::vector<std::pair<std::string, Verb>> verbs = {{"land", &Bucket::land},     {"defer", &Bucket::defer},
                                                         {"commit", &Bucket::commit}, {"discard", &Bucket::discard},
                                                         {"depart", &Bucket::depart}, {"settle", &Bucket::settle}};

// The legal transitions; every other pair is a Bug.
const std::map<std::pair<BucketState, std::string>, BucketState> legal = {
    {{BucketState::idle, "land"}, BucketState::landing},
    {{BucketState::landing, "land"}, BucketState::landing},
    {{BucketState::landing, "defer"}, BucketState::deferred},
    {{BucketState::landing, "discard"}, BucketState::discarded},
    {{BucketState::deferred, "commit"}, BucketState::committed},
    {{BucketState::deferred, "discard"}, BucketState::discarded},
    {{BucketState::committed, "depart"}, BucketState::returning},
    {{BucketState::returning, "settle"}, BucketState::idle},
    {{BucketState::discarded, "settle"}, BucketState::idle},
};

// A bucket brought into a state by legal verbs.
Bucket in_state(BucketState state) {
  Bucket bucket(3, {64, 128}, Owner::host);
  if (state == BucketState::idle) return bucket;
  bucket.land();
  if (state == BucketState::landing) return bucket;
  if (state == BucketState::discarded) {
    bucket.discard();
    return bucket;
  }
  bucket.defer();
  if (state == BucketState::deferred) return bucket;
  bucket.commit();
  if (state == BucketState::committed) return bucket;
  bucket.depart();
  return bucket;
}

TEST(Bucket, EveryVerbInEveryState) {
  int legal_seen = 0;
  for (const BucketState state : {BucketState::idle, BucketState::landing, BucketState::deferred,
                                  BucketState::committed, BucketState::discarded, BucketState::returning}) {
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

TEST(CutBuckets, CoverTheRangeAlignedAndNeverTooLarge) {
  std::mt19937 random(7);
  int cut_inside = 0, joined_units = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const ParameterLayout layout = random_layout(random);
    const std::int64_t most = ParameterLayout::alignment << (random() % 12);
    SCOPED_TRACE("trial " + std::to_string(trial) + ", at most " + std::to_string(most));
    std::int64_t at = 0;
    std::vector<Range> buckets = cut_buckets(layout, most);
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

TEST(CutBuckets, WholeModelInOneIfItFits) {
  std::mt19937 random(8);
  const ParameterLayout layout = random_layout(random);
  EXPECT_EQ(cut_buckets(layout, layout.elements()), (std::vector<Range>{{0, layout.elements()}}));
}

TEST(CutBuckets, RefusesSizesThatAreNoMultipleOfTheAlignment) {
  std::mt19937 random(9);
  const ParameterLayout layout = random_layout(random);
  for (const std::int64_t elements : {0, -64, 1, 63, 65, 100})
    EXPECT_THROW(cut_buckets(layout, elements), Bug) << elements;
}

}  // namespace
}  // namespace so
