// How long the device's passes take, and where in them it comes to each unit, by its own clock and without what it
// waits for: what the policy goes by (offload/schedule/update_policy.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "offload/device_waits.h"
#include "offload/schedule/pass_shares.h"

namespace so {

// The median of the last few values, so that an outlier (a step with an evaluation, say) has no effect.
class RecentMedian {
 public:
  void add(double value) { values_[count_++ % values_.size()] = value; }
  double median() const;  // 0 of none

 private:
  std::array<double, 5> values_{};
  std::size_t count_ = 0;
};

// Its calls come in the order of the work on the model's stream. `waits` are those of that stream; it must outlive
// this.
class PassTimes {
 public:
  // `waiting`: how a thread waits for complete().
  PassTimes(Device& device, DeviceWaits& waits, PassShares before_any, Waiting waiting = Waiting::spins);

  // The step's passes begin; what was needed since the verdict was an evaluation's.
  void begin_step();
  // What follows on `stream` needs the unit's weights, for which it has not waited yet. The first time since the
  // verdict, or since begin_step(), counts.
  void need(int unit, Stream& stream);
  // Forward passes do not need the unit's weights from now on, until need() says otherwise.
  void forget_need(int unit);
  // The last micro-batch begins.
  void begin_last() { first_ = true; }
  // Its gradient of the unit is complete on `stream`. Returns the event that the caller is to record where the host may
  // take the gradient, not before.
  Event& land(int unit, Stream& stream);
  // All of its gradients, and their statistics, are on the host when this is reached.
  Event& complete() { return *complete_; }
  // What follows on `stream` comes after the verdict and the device's own updates.
  void decide(Stream& stream);

  // After a step's last wait, and before decide(): takes what its events say. `waited`: DeviceWaits::collect(), which
  // was just called. The events have been reached.
  void measure(const WaitSeconds& waited, std::int64_t micro_batches);

  double forward_seconds() const { return forward_.median(); }    // StepTimes
  double backward_seconds() const { return backward_.median(); }  // StepTimes
  const PassShares& shares() const { return shares_; }

 private:
  struct Unit {
    std::unique_ptr<Event> needed, landed;
    bool is_needed = false, has_landed = false;
    std::size_t waits_to_need = 0, waits_to_land = 0;  // DeviceWaits::count()
    RecentMedian needed_share, left_share;
  };

  DeviceWaits& waits_;
  std::vector<Unit> units_;
  std::unique_ptr<Event> first_landed_, complete_, decided_;
  bool was_decided_ = false;  // decided_ is of the step before
  bool first_ = false;        // no gradient of the last micro-batch is complete yet
  RecentMedian forward_, backward_;
  PassShares shares_;
};

}  // namespace so
