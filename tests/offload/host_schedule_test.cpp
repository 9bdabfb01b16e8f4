// The host's schedule decides what comes next: tested without threads, so that every order is one that the test chose.
#include "offload/schedule/host_schedule.h"

#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"

namespace so {
namespace {

class Places final : public StatePlaces {
 public:
  explicit Places(int count) : spare(count) {}
  bool has_spare() const override { return spare > 0; }
  int take_spare() override { return --spare; }
  void give_back(int) override { ++spare; }
  void adopt(int, const Bucket& bucket) override {
    ++spare;
    adopted.push_back(bucket.index());
  }
  int spare;
  std::vector<int> adopted;
};

// Bucket 0 is the device's, 1 to 4 the host's.
struct Host {
  std::vector<Bucket> buckets;
  Places places;
  HostSchedule schedule;

  explicit Host(int spare)
      : buckets([] {
          std::vector<Bucket> all;
          for (int i = 0; i < 5; ++i)
            all.emplace_back(i, Range{64 * i, 64 * (i + 1)}, i == 0 ? Owner::device : Owner::host);
          return all;
        }()),
        places(spare),
        schedule(buckets, places) {}

  void begin(Ahead ahead, After after) {
    schedule.begin_step({std::vector(4, ahead), std::vector(4, after), std::vector(4, after)});
  }
  void gradients() {
    for (const int i : {4, 3, 2, 1}) {
      schedule.land(at(i));
      schedule.landed(at(i));
    }
  }
  // Does the most urgent; what it was, as "update 1", or "" if there is nothing.
  std::string next(Updater updater = Updater::host) {
    const int index = schedule.take(updater);
    return index < 0 ? "" : finish(index);
  }
  std::string finish(int index) {
    const HostTask task = schedule.begin(index);
    schedule.complete(index, task);
    return std::string(name_of(task)) + " " + std::to_string(index);
  }
  std::vector<std::string> all() {
    std::vector<std::string> done;
    for (std::string what = next(); !what.empty(); what = next()) done.push_back(what);
    return done;
  }
  Bucket& at(int index) { return buckets[static_cast<std::size_t>(index)]; }
};

using Tasks = std::vector<std::string>;

TEST(HostSchedule, OwnsTheHostsBuckets) {
  const Host host(0);
  EXPECT_EQ(std::vector<int>(host.schedule.owned().begin(), host.schedule.owned().end()),
            (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(host.schedule.elements().size(), 4u);
  EXPECT_TRUE(host.schedule.finished());
}

TEST(HostSchedule, AfterTheVerdictTheLowestFirst) {
  Host host(0);
  host.begin(Ahead::leave, After::in_place);
  host.gradients();
  EXPECT_EQ(host.all(), Tasks{}) << "left until the verdict";
  host.schedule.decide(true, true);
  EXPECT_FALSE(host.schedule.has_final_weights(host.at(1)));
  EXPECT_EQ(host.all(), (Tasks{"update 1", "update 2", "update 3", "update 4"}));
  EXPECT_TRUE(host.schedule.finished());
  EXPECT_EQ(host.schedule.counters().updated_in_place, 4);
  EXPECT_EQ(host.schedule.counters().committed, 4);
}

// Both take what is next.
TEST(HostSchedule, TheLinkTakesFromTheSame) {
  Host host(1);
  host.begin(Ahead::speculate, After::weights_first);
  host.gradients();
  EXPECT_EQ(host.next(Updater::link), "speculate 4");
  EXPECT_EQ(host.next(Updater::link), "") << "no place is left";
  host.schedule.decide(true, true);
  EXPECT_EQ(host.next(), "weights first 1");
  EXPECT_EQ(host.next(Updater::link), "weights first 2");
  EXPECT_EQ(host.next(), "weights first 3");
  EXPECT_EQ(host.next(Updater::link), "state 3");
  EXPECT_EQ(host.next(Updater::link), "state 2");
  EXPECT_EQ(host.next(Updater::link), "state 1");
  EXPECT_EQ(host.next(Updater::link), "") << "adopting is the host's";
  EXPECT_FALSE(host.schedule.finished());
  EXPECT_EQ(host.next(), "adopt 4");
  EXPECT_TRUE(host.schedule.finished());
  EXPECT_EQ(host.schedule.counters().over_link, 5);
}

// It leaves old weights to the host.
TEST(HostSchedule, TheLinkLeavesWhatIsNoUpdate) {
  Host host(1);
  host.begin(Ahead::preview, After::in_place);
  host.gradients();
  EXPECT_EQ(host.next(Updater::link), "preview 4");
  EXPECT_EQ(host.all(), (Tasks{"preview 3", "preview 2", "preview 1"}));
  host.schedule.decide(false, false);
  EXPECT_EQ(host.next(Updater::link), "");
  EXPECT_EQ(host.all().size(), 4u);
  EXPECT_TRUE(host.schedule.finished());
  EXPECT_EQ(host.places.spare, 1);
}

// A verdict that comes while the link has a bucket applies when it is done.
TEST(HostSchedule, TheVerdictComesWhileTheLinkWorks) {
  for (const bool clipped : {false, true}) {
    Host host(2);
    host.begin(Ahead::speculate, After::in_place);
    host.gradients();
    const int index = host.schedule.take(Updater::link);
    const HostTask task = host.schedule.begin(index);
    EXPECT_EQ(task, HostTask::speculate);
    host.schedule.decide(true, !clipped);
    EXPECT_EQ(host.all(), (Tasks{"update 1", "update 2", "update 3"}));
    host.schedule.complete(index, task);
    EXPECT_EQ(host.all(), clipped ? Tasks{"update 4"} : Tasks{"adopt 4"});
    EXPECT_EQ(host.schedule.counters().voided, clipped ? 1 : 0);
    EXPECT_EQ(host.places.spare, 2);
    EXPECT_TRUE(host.schedule.finished());
  }
}

// Weights by the lowest, the state that follows by the highest; both must be done before the gradient may be written.
TEST(HostSchedule, StateFollowsTheHighestFirst) {
  Host host(0);
  host.begin(Ahead::leave, After::weights_first);
  host.gradients();
  host.schedule.decide(true, true);
  EXPECT_EQ(host.next(), "weights first 1");
  EXPECT_TRUE(host.schedule.has_final_weights(host.at(1)));
  EXPECT_FALSE(host.schedule.needs_no_gradient(host.at(1)));
  EXPECT_EQ(host.all(), (Tasks{"weights first 2", "weights first 3", "weights first 4", "state 4", "state 3", "state 2",
                               "state 1"}));
  EXPECT_TRUE(host.schedule.needs_no_gradient(host.at(1)));
}

// Ahead of the verdict in the order in which gradients come, as far as there are places; the verdict adopts them, the
// highest first, after what forward waits for.
TEST(HostSchedule, SpeculatesWhereThereArePlaces) {
  Host host(2);
  host.begin(Ahead::speculate, After::in_place);
  host.gradients();
  EXPECT_EQ(host.all(), (Tasks{"speculate 4", "speculate 3"}));
  EXPECT_EQ(host.places.spare, 0);
  host.schedule.decide(true, true);
  EXPECT_TRUE(host.schedule.has_final_weights(host.at(4)));
  EXPECT_EQ(host.all(), (Tasks{"update 1", "update 2", "adopt 4", "adopt 3"}));
  EXPECT_EQ(host.places.adopted, (std::vector<int>{4, 3}));
  EXPECT_EQ(host.places.spare, 2);
  EXPECT_EQ(host.schedule.counters().committed_ahead, 2);
  EXPECT_TRUE(host.schedule.finished());
}

// Weights that are made of the state are new when that is, so it is adopted at once, and nothing is previewed.
TEST(HostSchedule, WeightsOfMastersAreNewWithTheirState) {
  Host host(2);
  for (const int i : {3, 4}) host.schedule.set_from_masters(host.at(i));
  host.begin(Ahead::speculate, After::weights_first);
  host.gradients();
  EXPECT_EQ(host.all(), (Tasks{"speculate 4", "speculate 3"}));
  host.schedule.decide(true, true);
  EXPECT_FALSE(host.schedule.has_final_weights(host.at(3))) << "the new state lies beside";
  EXPECT_EQ(host.all(), (Tasks{"adopt 3", "adopt 4", "weights first 1", "weights first 2", "state 2", "state 1"}));
  EXPECT_TRUE(host.schedule.has_final_weights(host.at(3)));
  host.begin(Ahead::preview, After::weights_first);
  host.gradients();
  EXPECT_EQ(host.all(), (Tasks{"preview 2", "preview 1"}));
  host.schedule.decide(true, true);
  EXPECT_EQ(host.all(), (Tasks{"update 3", "update 4", "state 2", "state 1"}));
  // A skipped step leaves the masters as they were.
  host.begin(Ahead::speculate, After::in_place);
  host.gradients();
  EXPECT_EQ(host.all(), (Tasks{"speculate 4", "speculate 3"}));
  host.schedule.decide(false, true);
  host.all();
  EXPECT_TRUE(host.schedule.has_final_weights(host.at(4)));
  EXPECT_EQ(host.places.adopted, (std::vector<int>{3, 4}));
}

TEST(HostSchedule, AClippedVerdictVoidsWhatWasDoneAhead) {
  Host host(4);
  host.begin(Ahead::speculate, After::in_place);
  host.gradients();
  EXPECT_EQ(host.next(), "speculate 4");
  host.schedule.decide(true, false);
  EXPECT_EQ(host.places.spare, 4);
  EXPECT_EQ(host.all(), (Tasks{"update 1", "update 2", "update 3", "update 4"}));
  EXPECT_EQ(host.schedule.counters().voided, 1);
  EXPECT_EQ(host.schedule.counters().redone, 1);
}

TEST(HostSchedule, ASkippedStepPutsOldWeightsBack) {
  Host host(0);
  host.begin(Ahead::preview, After::in_place);
  host.gradients();
  EXPECT_EQ(host.next(), "preview 4");
  host.schedule.decide(false, false);
  EXPECT_EQ(host.all(), Tasks{"restore weights 4"});
  EXPECT_TRUE(host.schedule.finished());
  EXPECT_EQ(host.schedule.counters().restored, 1);
  EXPECT_EQ(host.schedule.counters().discarded, 4);
}

// A verdict that comes while a bucket is in hand changes what is done with it, or what becomes of it.
TEST(HostSchedule, AVerdictMayComeWhileABucketIsInHand) {
  Host host(1);
  host.begin(Ahead::speculate, After::in_place);
  host.gradients();
  const int index = host.schedule.take();
  EXPECT_EQ(index, 4);
  EXPECT_EQ(host.schedule.task_of(index), HostTask::speculate);
  EXPECT_GE(host.schedule.place_of(index), 0);
  host.schedule.decide(true, true);
  EXPECT_FALSE(host.schedule.has_final_state(host.at(4)));
  EXPECT_EQ(host.finish(index), "update 4");
  EXPECT_EQ(host.places.spare, 1) << "its place was given back";
  host.all();

  host.begin(Ahead::preview, After::in_place);
  host.gradients();
  ASSERT_EQ(host.schedule.take(), 4);
  const HostTask task = host.schedule.begin(4);
  host.schedule.decide(true, true);  // meanwhile
  host.schedule.complete(4, task);
  EXPECT_EQ(host.at(4).state(), BucketState::owing);
  EXPECT_EQ(host.all(), (Tasks{"update 1", "update 2", "update 3", "state 4"}));
}

TEST(HostSchedule, GradientsThatAreLeftUntilAfterTheVerdictGoBehindTheOthers) {
  Host host(4);
  host.schedule.set_late(host.at(1));
  host.schedule.begin_step({{Ahead::speculate, Ahead::speculate, Ahead::preview, Ahead::leave},
                            std::vector(4, After::in_place),
                            std::vector(4, After::in_place)});
  std::vector<int> order;
  for (const Bucket* bucket : host.schedule.landing_order(host.buckets)) order.push_back(bucket->index());
  EXPECT_EQ(order, (std::vector{3, 2, 0, 4, 1})) << "0 is the device's, and 1 a late one, whatever is chosen";
}

// What idle() is to say, asked of every bucket in the order in which gradients become complete.
HostSchedule::Idle idle_by_definition(const Host& host, const UpdateChoice& choice,
                                      const std::map<int, HostTask>& hand) {
  const HostSchedule& schedule = host.schedule;
  bool any_place = false, any = false, all = true;
  for (const int i : schedule.owned()) any_place = any_place || schedule.place_of(i) >= 0;
  const bool all_full = any_place && host.places.spare == 0;
  HostSchedule::Idle left{HostTime::verdict, -1};
  for (const int i : {4, 3, 2, 1}) {
    const Bucket& bucket = host.buckets[static_cast<std::size_t>(i)];
    any = any || !schedule.is_decided(bucket);
    all = all && !schedule.is_decided(bucket);
    if (schedule.is_decided(bucket) || hand.contains(i) || bucket.state() != BucketState::deferred) continue;
    const bool wants_place = all_full || choice.ahead[static_cast<std::size_t>(i) - 1] == Ahead::speculate;
    if (left.bucket < 0 || (wants_place && left.reason == HostTime::verdict))
      left = {wants_place ? HostTime::place : HostTime::verdict, i};
  }
  if (left.bucket >= 0) return left;
  return {any && all ? HostTime::verdict : HostTime::gradient, -1};
}

// In any order of gradients, work by both and verdicts, skipped, clipped and reopened steps among them.
TEST(HostSchedule, WhyItIsIdleIsThatOfTheDefinition) {
  std::map<HostTime, int> seen;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
    Host host(below(5));
    std::map<int, HostTask> hand;  // buckets in hand, and what was begun with them
    for (int step = 0; step < 8; ++step) {
      UpdateChoice choice{std::vector(4, Ahead::leave), std::vector(4, After::in_place),
                          std::vector(4, After::in_place)};
      for (std::size_t i = 0; i < 4; ++i) {
        choice.ahead[i] = static_cast<Ahead>(below(3));
        choice.after[i] = static_cast<After>(below(2));
        choice.redo[i] = static_cast<After>(below(2));
      }
      host.schedule.begin_step(choice);
      for (int landed = 0; landed < 5;) {
        const int what = below(5), bucket = 4 - landed;
        if (what == 0 && landed == 4) {
          const int verdict = below(6);
          verdict == 5 ? host.schedule.reopen() : host.schedule.decide(verdict > 0, verdict > 1);
          ++landed;
        } else if (what == 0 && host.schedule.needs_no_gradient(host.at(bucket)) && !hand.contains(bucket)) {
          host.schedule.land(host.at(bucket));
          host.schedule.landed(host.at(bucket));
          ++landed;
        } else if (what < 3 && hand.size() < 3) {
          const int index = host.schedule.take(what == 1 ? Updater::host : Updater::link);
          if (index >= 0) hand[index] = HostTask::none;
        } else if (!hand.empty()) {
          auto& [index, task] = *std::next(hand.begin(), below(static_cast<unsigned>(hand.size())));
          if (task == HostTask::none) task = host.schedule.begin(index);
          if (below(2) == 0) {
            host.schedule.complete(index, task);
            hand.erase(index);
          }
        }
        const HostSchedule::Idle idle = host.schedule.idle(), wanted = idle_by_definition(host, choice, hand);
        ASSERT_EQ(idle.reason, wanted.reason) << "seed " << seed << ", step " << step;
        ASSERT_EQ(idle.bucket, wanted.bucket) << "seed " << seed << ", step " << step;
        ++seen[idle.reason];
      }
    }
  }
  for (const HostTime reason : {HostTime::gradient, HostTime::place, HostTime::verdict}) EXPECT_GT(seen[reason], 100);
}

TEST(HostSchedule, ChoicesAreForAllItOwns) {
  Host host(0);
  EXPECT_THROW(host.schedule.begin_step({{Ahead::leave}, {After::in_place}, {After::in_place}}), Bug);
}

}  // namespace
}  // namespace so
