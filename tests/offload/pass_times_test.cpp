// When the device's passes need weights and complete gradients: by a clock that the test sets, and by elements.
#include "offload/pass_times.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace so {
namespace {

class ClockEvent final : public Event {
 public:
  void synchronize() override {}
  bool done() const override { return true; }
  double seconds_since(const Event& earlier) const override { return at - static_cast<const ClockEvent&>(earlier).at; }
  double at = 0;
};

// Records the test's time.
class ClockStream final : public Stream {
 public:
  ClockStream(Device& device, const double& now) : device_(device), now_(now) {}
  Device& device() const override { return device_; }
  std::string_view name() const override { return "clock"; }
  void record(Event& event) override { static_cast<ClockEvent&>(event).at = now_; }
  void wait(Event&) override {}
  void copy(void*, const void*, std::size_t) override {}
  void zero(void*, std::size_t) override {}
  void yield() override {}
  void host(std::string_view, std::function<void()>) override {}
  void await(std::string_view, std::function<void()>) override {}
  void synchronize() override {}

 private:
  Device& device_;
  const double& now_;
};

class ClockDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string name() const override { return "clock"; }
  bool backed() const override { return true; }
  std::unique_ptr<Stream> create_stream(std::string) override { return std::make_unique<ClockStream>(*this, now); }
  std::unique_ptr<Event> create_event(Timing, Waiting) override { return std::make_unique<ClockEvent>(); }

  double now = 0;

 private:
  void* allocate_memory(MemoryKind, std::size_t, const Touch&) override { return nullptr; }
  void free_memory(MemoryKind, void*, std::size_t) noexcept override {}
};

// A step's calls, as the engine makes them. The device's work takes 1 second for unit 0, 4 for unit 1, forward and
// backward alike, and 3 from there to the first gradient, that of unit 1.
struct Steps {
  ClockDevice device;
  const std::unique_ptr<Stream> stream = device.create_stream("");
  DeviceWaits waits{device};
  PassTimes passes{device, waits, PassShares::by_elements(std::vector<std::int64_t>{30, 10})};

  void wait(WaitReason reason, double seconds) {
    waits.begin(*stream, reason);
    device.now += seconds;
    waits.end(*stream);
  }
  void need(int unit, WaitReason reason, double seconds) {
    passes.need(unit, *stream);
    wait(reason, seconds);
  }
  void land(int unit) { stream->record(passes.land(unit, *stream)); }
  // `host`, `gradient`: seconds of a wait of the forward pass before each unit, and of the backward pass before unit 0.
  void step(double host, double gradient, std::int64_t micro_batches = 1) {
    passes.begin_step();
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      const bool last = i + 1 == micro_batches;
      if (last) passes.begin_last();
      need(0, WaitReason::host, i == 0 ? host : 0);
      device.now += 1;
      need(1, WaitReason::link, i == 0 ? host : 0);
      device.now += 4 + 3;
      if (last) land(1);
      wait(WaitReason::gradient, i == 0 ? gradient : 0);
      device.now += 4;
      if (last) land(0);
      device.now += 1;
    }
    stream->record(passes.complete());
    passes.measure(waits.collect(), micro_batches);
    device.now += 0.5;  // the verdict
    passes.decide(*stream);
  }
};

TEST(PassTimes, AreTheDevicesWithoutItsWaits) {
  for (const auto& [host, gradient] : {std::pair{0.0, 0.0}, {2.0, 5.0}}) {
    Steps steps;
    steps.step(host, gradient);
    EXPECT_EQ(steps.passes.forward_seconds(), 0) << "there was no verdict before it";
    EXPECT_NEAR(steps.passes.backward_seconds(), 5, 1e-12);
    EXPECT_EQ(steps.passes.shares().needed, (std::vector{0.0, 0.75})) << "by elements";
    steps.step(host, gradient);
    EXPECT_NEAR(steps.passes.forward_seconds(), 8, 1e-12);
    EXPECT_NEAR(steps.passes.shares().needed[0], 0, 1e-12);
    EXPECT_NEAR(steps.passes.shares().needed[1], 1 / 8.0, 1e-12);
    EXPECT_NEAR(steps.passes.shares().left[0], 1 / 5.0, 1e-12);
    EXPECT_NEAR(steps.passes.shares().left[1], 1, 1e-12);
  }
}

// Of the first micro-batch's pass, although what is measured goes to the last one's first gradient.
TEST(PassTimes, OfSeveralMicroBatches) {
  Steps steps;
  steps.step(2, 5, 3);
  steps.step(2, 5, 3);
  EXPECT_NEAR(steps.passes.forward_seconds(), 3 * 8 + 2 * 5, 1e-12);
  EXPECT_NEAR(steps.passes.backward_seconds(), 5, 1e-12);
  EXPECT_NEAR(steps.passes.shares().needed[1], 1 / 8.0, 1e-12);
  EXPECT_NEAR(steps.passes.shares().left[0], 1 / 5.0, 1e-12);
}

// An evaluation needs units too, before the step's passes begin.
TEST(PassTimes, WhatComesBeforeAStepIsNoneOfIt) {
  Steps steps;
  for (int step = 0; step < 5; ++step) {
    if (step == 3) {
      steps.need(1, WaitReason::host, 1);
      steps.device.now += 100;
      steps.waits.collect();
    }
    steps.step(0, 0);
  }
  EXPECT_NEAR(steps.passes.forward_seconds(), 8, 1e-12);
  EXPECT_NEAR(steps.passes.shares().needed[1], 1 / 8.0, 1e-12);
}

TEST(PassShares, ByElementsUntilAnythingIsKnown) {
  const PassShares shares = PassShares::by_elements(std::vector<std::int64_t>{10, 20, 10});
  EXPECT_EQ(shares.needed, (std::vector{0.0, 0.25, 0.75}));
  EXPECT_EQ(shares.left, (std::vector{0.0, 1 / 3.0, 1.0}));
  const BucketShares buckets(shares, std::vector{1, 1, 2});
  EXPECT_EQ(buckets.needed, (std::vector{0.25, 0.25, 0.75}));
  EXPECT_EQ(buckets.left, (std::vector{1 / 3.0, 1 / 3.0, 1.0}));
  for (const std::vector<std::int64_t>& none : {std::vector<std::int64_t>{}, {0, 0}})
    EXPECT_EQ(PassShares::by_elements(none).needed, std::vector<double>(none.size(), 0));
  PassShares other = shares;
  other.left[1] += 1e-3;
  EXPECT_TRUE(shares.is_within(2e-3, other));
  EXPECT_FALSE(shares.is_within(5e-4, other));
}

}  // namespace
}  // namespace so
