// The order in which streamed weights travel: each use finds its unit, nothing travels twice without need, and what
// comes next is on its way before it is asked for.
#include "offload/memory/weight_stream.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <numeric>
#include <set>

#include "offload/copy_hook.h"
#include "offload/counted_settings.h"
#include "support/device_rig.h"
#include "support/on_gpu.h"

namespace so::test {
namespace {

ParameterLayout layers(int count) {
  std::vector<Parameter> parameters = {{"embed", {10, 8}, true, 0, false}};
  for (int i = 1; i <= count; ++i) parameters.push_back({std::to_string(i), {8 + i, 16}, true, i, false});
  parameters.push_back({"head", {10, 8}, true, count + 1, false});
  return ParameterLayout(std::move(parameters));
}

const std::vector<UnitPlacement> second_of_three = {{}, {.weights = ResidencyKind::streamed}, {}};

class Streaming {
 public:
  Streaming(int count, int streamed, const std::vector<bool>& remade = {})
      : layout_(layers(count)),
        backward_(backward_steps(layout_.units(), 0, remade)),
        order_(layout_.units(), 0, remade),
        placement_{.units = make_rows(trained_units(layout_), 1, {.streamed_units = streamed})},
        weights_(rig_.device(), layout_, DType::f32, turns_of(placement_).weights),
        stream_(rig_.device(), layout_, weights_, placement_.units,
                {.final_weights = [this](int unit) { return !pending.contains(unit); }, .cast_masters = {}}) {
    for (int unit = 0; unit < layout_.units(); ++unit)
      if (stream_.has(unit)) write(unit, static_cast<float>(unit));
  }
  ~Streaming() { rig_.stream().synchronize(); }

  void write(int unit, float value) {
    const Range range = layout_.unit_range(unit);
    stream_.drop(unit);
    auto* at = reinterpret_cast<float*>(stream_.host_memory(range.begin));
    std::fill_n(at, range.size(), value);
    expected_[unit] = value;
  }
  // The unit's use; whether it was on its way before.
  bool use(int unit) {
    stream_.prefetch(order_);
    if (!stream_.has(unit)) {
      order_.require(unit);
      order_.release();
      return true;
    }
    const std::int64_t before = stream_.copies();
    stream_.require(unit, rig_.stream());
    const bool early = stream_.copies() == before;
    const Tensor weight = weights_.weight(layout_.unit_parameters(unit).first);
    rig_.stream().synchronize();
    std::vector<float> found(static_cast<std::size_t>(weight.size()));
    rig_.stream().copy(found.data(), weight.data(), weight.bytes());
    rig_.stream().synchronize();
    EXPECT_EQ(found, std::vector<float>(found.size(), expected_.at(unit))) << unit;
    order_.require(unit);
    stream_.prefetch(order_);
    stream_.release(unit, rig_.stream());
    order_.release();
    stream_.prefetch(order_);
    return early;
  }
  // Forward and back; how many uses were late.
  int pass() {
    int late = 0;
    for (int unit = 0; unit < layout_.units(); ++unit) late += use(unit) ? 0 : 1;
    for (const BackwardStep& step : backward_) late += use(step.unit) ? 0 : 1;
    order_.end();
    return late;
  }
  std::int64_t copies() const { return stream_.copies(); }
  WeightStream& stream() { return stream_; }
  std::set<int> pending;  // whose weights are not final

 private:
  const ParameterLayout layout_;
  const std::vector<BackwardStep> backward_;
  PassOrder order_;
  const Placement placement_;
  DeviceRig rig_;
  DeviceWeights weights_;
  std::map<int, float> expected_;
  WeightStream stream_;
};

// A unit of more than a piece, and not a whole number of them.
TEST(WeightStream, CopiesLargeUnitsWhole) {
  constexpr std::int64_t columns = 1024, rows = WeightStream::piece_bytes / 4 / columns + 37;
  const ParameterLayout layout(
      {{"embed", {10, 8}, true, 0, false}, {"1", {rows, columns}, true, 1, false}, {"head", {10, 8}, true, 2, false}});
  DeviceRig rig;
  DeviceWeights weights(rig.device(), layout, DType::f32, std::vector<int>{-1, 0, -1});
  WeightStream stream(rig.device(), layout, weights, second_of_three,
                      {.final_weights = [](int) { return true; }, .cast_masters = {}});
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  std::iota(values.begin(), values.end(), 0.0f);
  std::memcpy(stream.host_memory(layout.unit_range(1).begin), values.data(), values.size() * sizeof(float));
  stream.require(1, rig.stream());
  const Tensor weight = weights.weight(layout.unit_parameters(1).first);
  std::vector<float> found(values.size());
  rig.stream().copy(found.data(), weight.data(), weight.bytes());
  rig.stream().synchronize();
  EXPECT_TRUE(found == values);
}

// Of a unit that is asked for while its weights are being made, the pieces that are final travel already.
TEST(WeightStream, SendsPiecesAsTheyBecomeFinal) {
  constexpr std::int64_t columns = 1024, piece = WeightStream::piece_bytes / 4, rows = 2 * piece / columns + 37;
  const ParameterLayout layout(
      {{"embed", {10, 8}, true, 0, false}, {"1", {rows, columns}, true, 1, false}, {"head", {10, 8}, true, 2, false}});
  DeviceRig rig;
  Stream* copies = nullptr;
  HookedDevice hooked(rig.device(), "weights", [&](Stream& on) {
    copies = &on;
    return true;
  });
  Device& device = on_gpu() ? rig.device() : hooked;
  DeviceWeights weights(device, layout, DType::f32, std::vector<int>{-1, 0, -1});
  WeightStream stream(device, layout, weights, second_of_three,
                      {.final_weights = [](int) { return false; }, .cast_masters = {}});
  const Range unit = layout.unit_range(1);
  const auto write = [&](float value) {
    std::fill_n(reinterpret_cast<float*>(stream.host_memory(unit.begin)), unit.size(), value);
  };
  std::vector<float> found(static_cast<std::size_t>(rows * columns));
  const auto read = [&] {
    const Tensor weight = weights.weight(layout.unit_parameters(1).first);
    rig.stream().copy(found.data(), weight.data(), weight.bytes());
    rig.stream().synchronize();
  };
  // In two parts, of which the first ends within the second piece.
  const std::int64_t middle = unit.begin + piece + piece / 2;
  write(1);
  stream.begin({unit.begin, middle});
  EXPECT_FALSE(stream.here(1));
  EXPECT_EQ(stream.copies(), 1);
  const auto first_is_there = [&] {
    read();
    return std::all_of(found.begin(), found.begin() + piece, [](float value) { return value == 1; });
  };
  if (copies != nullptr) copies->synchronize();  // nobody reads memory of the CPU device while it is written
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(on_gpu() ? 60 : 0);
  while (!first_is_there() && std::chrono::steady_clock::now() < patience) {
  }
  write(2);
  stream.begin({middle, unit.end});
  stream.require(1, rig.stream());
  read();
  EXPECT_EQ(stream.copies(), 1);
  EXPECT_TRUE(stream.here(1));
  const auto expected = [&](std::size_t i) { return i < static_cast<std::size_t>(piece) ? 1.0f : 2.0f; };
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < found.size(); ++i) wrong += found[i] == expected(i) ? 0 : 1;
  EXPECT_EQ(wrong, 0U);
  // Weights that have changed travel anew, all of them.
  stream.release(1, rig.stream());
  stream.drop(1);
  write(3);
  stream.require(1, rig.stream());
  read();
  EXPECT_TRUE(found == std::vector<float>(found.size(), 3));
}

TEST(WeightStream, CopiesWhatIsNotThereAndAheadOfItsUse) {
  for (const int streamed : {1, 2, 3, 5, 6}) {
    SCOPED_TRACE(streamed);
    Streaming s(6, streamed);
    const int n = streamed, places = stream_places;
    EXPECT_EQ(s.pass(), 0) << "all were on their way before they were asked for";
    // Forward all; back, all but those still there.
    const int once = n + std::max(0, n - places);
    EXPECT_EQ(s.copies(), once);
    // The next pass begins with those that were used last.
    EXPECT_EQ(s.pass(), 0);
    EXPECT_EQ(s.copies(), once + std::max(0, n - places) * 2);
  }
}

TEST(WeightStream, BringsNewWeightsOfUnitsThatChanged) {
  Streaming s(6, 6);
  s.pass();
  for (int step = 1; step < 4; ++step) {
    for (int unit = 1; unit <= 6; ++unit) s.write(unit, static_cast<float>(100 * step + unit));
    const std::int64_t before = s.copies();
    EXPECT_EQ(s.pass(), 0);
    EXPECT_EQ(s.copies() - before, 6 + 4);
  }
}

// Two runs of three layers: the second one's inputs are made again, and then the first one's. A unit of the first run
// and one of the second have a place in common, so the first of a run cannot come while the one before is used.
TEST(WeightStream, ComesAheadOfForwardPassesInBackwardToo) {
  Streaming s(7, 7, {false, false, true, true, false, true, true, false, false});
  s.pass();
  const std::int64_t before = s.copies();
  EXPECT_EQ(s.pass(), 0);
  // Forward 1 to 7, of which 1 and 2 are there; then 7, 4 5 6 5 4, 1 2 3 2 1.
  EXPECT_EQ(s.copies() - before, 5 + 0 + 3 + 1 + 3 + 1);
}

TEST(WeightStream, WaitsForWeightsThatAreNotFinal) {
  Streaming s(6, 6);
  s.pending = {1, 3};
  EXPECT_FALSE(s.use(1)) << "nothing of it could travel";
  EXPECT_TRUE(s.use(2));
  s.pending = {};
  EXPECT_TRUE(s.use(3)) << "it travels as soon as something is asked for";
}

TEST(WeightStream, ServesPassesThatOnlyGoForward) {
  Streaming s(5, 5);
  for (int pass = 0; pass < 3; ++pass)
    for (int unit = 0; unit < 7; ++unit) s.use(unit);
  EXPECT_EQ(s.pass(), 0) << "the embedding, which does not stream, shows that a pass begins anew";
}

TEST(WeightStream, ForgetsAllAtOnce) {
  Streaming s(4, 4);
  s.pass();
  s.stream().drop_all();
  const std::int64_t before = s.copies();
  s.pass();
  EXPECT_EQ(s.copies() - before, 4 + 2);
}

}  // namespace
}  // namespace so::test
