// The order in which weights are gathered: the same whenever this rank's slices become final, each unit ahead of its
// use, and none twice without need.
#include "offload/memory/gathered_weights.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "offload/counted_settings.h"
#include "offload/memory/unit_weights.h"
#include "offload/schedule/pass_order.h"
#include "support/device_rig.h"

namespace so::test {
namespace {

ParameterLayout layout_of_layers(int count) {
  std::vector<Parameter> parameters = {{"embed", {10, 8}, true, 0, false}};
  for (int i = 1; i <= count; ++i) parameters.push_back({std::to_string(i), {8 + i, 16}, true, i, false});
  parameters.push_back({"head", {10, 8}, true, count + 1, false});
  return ParameterLayout(std::move(parameters));
}

// The weights of rank 0 of two, whose gathers are written down instead of made. Negative: the gather of a unit that
// stays.
class Gathering {
 public:
  Gathering(int layers, int gathered, std::function<bool(int)> sent, const std::vector<bool>& remade = {})
      : layout_(layout_of_layers(layers)),
        backward_(backward_steps(layout_.units(), 1, remade)),
        placement_{.units = make_rows(trained_units(layout_), 2, {.gathered_units = gathered}, inputs(remade)),
                   .ranks = 2},
        buckets_(make_buckets(layout_, 64, placement_.units, true)),
        weights_(rig_.device(), layout_, DType::f32, {}, placement_, buckets_,
                 {.final_weights = {},
                  .cast_masters = {},
                  .gathers = {.stream = [this]() -> Stream& { return *stream_; },
                              .sent = std::move(sent),
                              .require_sent = [this](int unit) { units_.push_back(unit); },
                              .gather = [](std::span<const BucketGather>) {},
                              .whole = [this](int unit) { return whole_[static_cast<std::size_t>(unit)]; }}}),
        stream_(rig_.device().create_stream("gather")),
        whole_(static_cast<std::size_t>(layout_.units()), true) {}
  ~Gathering() { rig_.stream().synchronize(); }

  void use(int unit) {
    const auto u = static_cast<std::size_t>(unit);
    if (placement_.units[u].weights == ResidencyKind::resident && !whole_[u]) {
      weights_.finish_prefetch();
      units_.push_back(-unit);
      whole_[u] = true;
    }
    const std::size_t before = units_.size();
    weights_.of(unit).require(unit, rig_.stream());
    late += units_.size() - before;
    weights_.required(unit);
    weights_.of(unit).release(unit, rig_.stream());
    weights_.released();
  }
  void forward() {
    for (int unit = 0; unit < layout_.units(); ++unit) use(unit);
  }
  // As a model: the head's backward pass is that of its forward use, and the embedding's needs no weights.
  void micro_batch(bool last) {
    forward();
    for (const auto [unit, forward_again] : backward_) {
      if (unit == layout_.units() - 1) continue;
      use(unit);
      if (last && !forward_again) weights_.of(unit).drop(unit);
    }
    weights_.end_pass();
  }
  void load() {
    weights_.drop_all();
    update();
  }
  void update() { whole_.assign(whole_.size(), false); }
  std::vector<int> take() { return std::exchange(units_, {}); }
  std::size_t late = 0;  // gathers that began when their unit was asked for

 private:
  const ParameterLayout layout_;
  const std::vector<BackwardStep> backward_;
  const Placement placement_;
  const std::vector<Bucket> buckets_;
  DeviceRig rig_;
  UnitWeights weights_;
  std::unique_ptr<Stream> stream_;
  std::vector<bool> whole_;  // of units that stay
  std::vector<int> units_;   // in the order of their gathers
};

bool always(int) { return true; }
bool never(int) { return false; }

TEST(GatheredWeights, EachUnitComesAheadOfItsUse) {
  Gathering g(5, 5, always);
  g.micro_batch(false);
  EXPECT_EQ(g.take(), (std::vector<int>{1, 2, 3, 4, 5, 3, 2, 1})) << "the last two forward are the first two backward";
  g.micro_batch(false);
  EXPECT_EQ(g.take(), (std::vector<int>{3, 4, 5, 3, 2, 1})) << "and so it goes on";
  EXPECT_EQ(g.late, 0u);
  g.forward();
  g.forward();
  EXPECT_EQ(g.take(), (std::vector<int>{3, 4, 5, 1, 2, 3, 4, 5})) << "a pass that goes forward only begins anew";
  EXPECT_EQ(g.late, 0u);
}

TEST(GatheredWeights, ComeAheadOfForwardPassesInBackwardToo) {
  // Layers 1 to 3 and 4 to 6: the second run's inputs are made again, and then the first one's.
  Gathering g(6, 6, always, {false, false, true, true, false, true, true, false});
  for (int i = 0; i < 3; ++i) {
    g.micro_batch(i == 2);
    g.take();
  }
  g.update();
  g.micro_batch(false);
  EXPECT_EQ(g.take(), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, -7, 4, 6, 4, 1, 2, 3, 1})) << "5 and 2 are there";
  EXPECT_EQ(g.late, 0u);
}

TEST(GatheredWeights, UnitsThatStayAreGatheredInTheirTurn) {
  Gathering g(5, 2, always);  // 3 and 5
  g.micro_batch(true);
  g.take();
  g.update();
  g.micro_batch(true);
  EXPECT_EQ(g.take(), (std::vector<int>{0, -1, -2, 3, -4, 5, -6})) << "none before those that the pass needs first";
  EXPECT_EQ(g.late, 0u);
  // Nothing lies between: it comes as soon as its place is free.
  g.use(0);
  EXPECT_EQ(g.take(), (std::vector<int>{3}));
}

TEST(GatheredWeights, TheOrderDoesNotDependOnTheHost) {
  for (const int gathered : {1, 2, 3, 5, 6}) {
    const auto order = [&](const std::function<bool(int)>& sent) {
      Gathering g(6, gathered, sent);
      for (int step = 0; step < 8; ++step) {
        for (int i = 0; i <= step % 3; ++i) g.micro_batch(i == step % 3);
        g.update();
        if (step % 4 == 1) g.forward();
        // A pass that is given up: the next one finds its places taken. And weights that are loaded after one.
        if (step % 4 == 2)
          for (const int unit : {0, 1, 2}) g.use(unit);
        if (step % 4 == 3) {
          g.use(0);
          g.load();
        }
      }
      g.micro_batch(true);
      return g.take();
    };
    const std::vector<int> expected = order(always);
    EXPECT_EQ(order(never), expected) << gathered;
    for (unsigned seed = 0; seed < 20; ++seed) {
      std::mt19937 random(seed);
      EXPECT_EQ(order([&](int) { return random() % 3 == 0; }), expected) << gathered << ", seed " << seed;
    }
  }
}

TEST(GatheredWeights, AHostThatIsLateHoldsUpNothingButTheUse) {
  Gathering g(5, 5, never);
  g.micro_batch(true);
  EXPECT_EQ(g.take(), (std::vector<int>{1, 2, 3, 4, 5, 3, 2, 1}));
  EXPECT_EQ(g.late, 8u) << "prefetch() does not wait";
}

}  // namespace
}  // namespace so::test
