#include "offload/update_chooser.h"

#include <utility>

#include "device/trace.h"

namespace so {

UpdateChooser::UpdateChooser(const EngineSettings& settings, const ParameterLayout& layout,
                             std::span<const Bucket> buckets, const HostOptimizer& host, PassTimes& passes,
                             std::unique_ptr<UpdatePolicy> policy)
    : settings_(settings),
      host_(host),
      passes_(passes),
      policy_(settings.placement.schedule == Schedule::synchronous ? make_synchronous_policy()
              : policy                                             ? std::move(policy)
                                                                   : make_adaptive_policy()) {
  for (const int index : host.owned()) {
    const Bucket& bucket = buckets[static_cast<std::size_t>(index)];
    unit_of_.push_back(layout.unit_of(bucket.range().begin));
    const bool streams = is_streamed(settings.placement.unit(unit_of_.back()).weights);
    streamed_.push_back(streams ? bucket.own().size() : 0);
  }
  shares_ = BucketShares(passes.shares(), unit_of_);
}

void UpdateChooser::set_late(int unit) {
  late_.resize(unit_of_.size(), 0);
  for (std::size_t i = 0; i < late_.size(); ++i)
    if (unit_of_[i] == unit) late_[i] = 1;
  passes_.forget_need(unit);  // but for some rows
  shares_ = BucketShares(passes_.shares(), unit_of_);
}

UpdateChoice UpdateChooser::choose(std::int64_t micro_batches) {
  const TraceSpan span("choose updates");
  UpdateFacts facts;
  static_cast<StepTimes&>(facts) = times().or_else(settings_.expected);
  facts.elements = host_.elements();
  facts.needed = shares_.needed;
  facts.left = shares_.left;
  facts.late = late_;
  facts.streamed = streamed_;
  facts.spare_places = settings_.placement.spare_buckets;
  facts.micro_batches = micro_batches;
  facts.clip_rate = clip_rate_;
  facts.awaits_updates = settings_.caller.awaits_updates;
  facts.previews = !settings_.placement.makes_from_masters(Owner::host);
  return policy_->choose(facts);
}

void UpdateChooser::measured(bool clipped_or_skipped) {
  shares_ = BucketShares(passes_.shares(), unit_of_);
  clip_rate_ += 0.2 * ((clipped_or_skipped ? 1.0 : 0.0) - clip_rate_);
}

StepTimes UpdateChooser::times() const {
  StepTimes times = host_.times();
  times.forward_seconds = passes_.forward_seconds();
  times.backward_seconds = passes_.backward_seconds();
  return times;
}

}  // namespace so
