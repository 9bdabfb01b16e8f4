#include "offload/pass_times.h"

#include <algorithm>
#include <utility>

#include "offload/schedule/update_policy.h"

namespace so {
namespace {

double of(const WaitSeconds& waits, WaitReason reason) { return waits[static_cast<std::size_t>(reason)]; }

// A policy can change these waits of a forward pass, and no others.
double for_weights(const WaitSeconds& waits) { return of(waits, WaitReason::host) + of(waits, WaitReason::link); }

}  // namespace

double RecentMedian::median() const {
  std::array<double, 5> sorted = values_;
  const auto count = static_cast<std::ptrdiff_t>(std::min(count_, sorted.size()));
  if (count == 0) return 0;
  std::nth_element(sorted.begin(), sorted.begin() + count / 2, sorted.begin() + count);
  return sorted[static_cast<std::size_t>(count / 2)];
}

PassTimes::PassTimes(Device& device, DeviceWaits& waits, PassShares before_any, Waiting waiting)
    : waits_(waits),
      units_(before_any.needed.size()),
      first_landed_(device.create_event(Timing::on)),
      complete_(device.create_event(Timing::on, waiting)),
      decided_(device.create_event(Timing::on)),
      shares_(std::move(before_any)) {
  for (Unit& unit : units_)
    for (std::unique_ptr<Event>* event : {&unit.needed, &unit.landed}) *event = device.create_event(Timing::on);
}

void PassTimes::begin_step() {
  for (Unit& unit : units_) unit.is_needed = false;
}

void PassTimes::need(int unit, Stream& stream) {
  Unit& u = units_[static_cast<std::size_t>(unit)];
  if (std::exchange(u.is_needed, true)) return;
  u.waits_to_need = waits_.count();
  stream.record(*u.needed);
}

void PassTimes::forget_need(int unit) {
  Unit& u = units_[static_cast<std::size_t>(unit)];
  u.is_needed = false;
  u.needed_share = {};
  shares_.needed[static_cast<std::size_t>(unit)] = PassShares::never;
}

Event& PassTimes::land(int unit, Stream& stream) {
  if (std::exchange(first_, false)) stream.record(*first_landed_);
  Unit& u = units_[static_cast<std::size_t>(unit)];
  u.has_landed = true;
  u.waits_to_land = waits_.count();
  return *u.landed;
}

void PassTimes::decide(Stream& stream) {
  stream.record(*decided_);
  was_decided_ = true;
  begin_step();
}

void PassTimes::measure(const WaitSeconds& waited, std::int64_t micro_batches) {
  // The first micro-batch alone waits for gradients of the step before, and what moves passes whatever the host does.
  const bool several = micro_batches > 1;
  const double gradient = of(waited, WaitReason::gradient);
  const double backward = complete_->seconds_since(*first_landed_) - (several ? 0 : gradient);
  backward_.add(backward);
  for (std::size_t i = 0; i < units_.size() && backward > 0; ++i) {
    if (!std::exchange(units_[i].has_landed, false)) continue;
    const double waits = several ? 0 : of(waits_.before(units_[i].waits_to_land), WaitReason::gradient);
    units_[i].left_share.add(
        std::clamp(1 - (units_[i].landed->seconds_since(*first_landed_) - waits) / backward, 0.0, 1.0));
    shares_.left[i] = units_[i].left_share.median();
  }
  if (!was_decided_) return;
  const double forward = first_landed_->seconds_since(*decided_) - for_weights(waited) - (several ? gradient : 0);
  forward_.add(forward);
  const double first = first_forward_seconds(forward, backward, micro_batches);
  for (std::size_t i = 0; i < units_.size() && first > 0; ++i) {
    Unit& unit = units_[i];
    if (!unit.is_needed) continue;
    const double seconds = unit.needed->seconds_since(*decided_) - for_weights(waits_.before(unit.waits_to_need));
    unit.needed_share.add(std::clamp(seconds / first, 0.0, 1.0));
    shares_.needed[i] = unit.needed_share.median();
  }
}

}  // namespace so
