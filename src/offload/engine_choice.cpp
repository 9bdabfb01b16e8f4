// The engine measures for the policy, and asks it.
#include <cstdint>
#include <utility>

#include "device/trace.h"
#include "offload/engine.h"

namespace so {

// To choose takes milliseconds. The device would wait for that before the forward pass, so it is done where the forward
// pass must wait for the host in any case, or else when the first gradient comes: the device is behind then.
void OffloadEngine::choose_updates() {
  if (!last_micro_batch_ || std::exchange(updates_chosen_, true)) return;
  const TraceSpan span("choose updates");
  host_.begin_step(steps(1.0f), policy_->choose(facts()));
}

// All of the step has run on the device, or is about to: what waits for the verdict has been given it.
void OffloadEngine::measure(bool clipped_or_skipped, std::int64_t micro_batches) {
  if (!device_.backed()) return;
  const WaitSeconds waits = waits_.collect();
  for (std::size_t i = 0; i < wait_reasons; ++i) counters_.device_waits[i] += waits[i];
  passes_.measure(waits, micro_batches);
  shares_ = BucketShares(passes_.shares(), unit_of_);
  clip_rate_ += 0.2 * ((clipped_or_skipped ? 1.0 : 0.0) - clip_rate_);
}

StepTimes OffloadEngine::measured_times() const {
  StepTimes times = host_.times();
  times.forward_seconds = passes_.forward_seconds();
  times.backward_seconds = passes_.backward_seconds();
  return times;
}

UpdateFacts OffloadEngine::facts() const {
  UpdateFacts facts;
  static_cast<StepTimes&>(facts) = measured_times().or_else(settings_.expected);
  facts.elements = host_.elements();
  facts.needed = shares_.needed;
  facts.left = shares_.left;
  facts.late = late_;
  facts.streamed = streamed_;
  facts.undo_places = settings_.placement.spare_buckets;
  facts.micro_batches = micro_batches_ + 1;
  facts.clip_rate = clip_rate_;
  facts.awaits_updates = settings_.caller.awaits_updates;
  facts.previews = !settings_.placement.makes_from_masters(Owner::host);
  return facts;
}

}  // namespace so
