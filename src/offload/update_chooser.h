// This has the policy choose a step's updates, by what the engine measures.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "offload/engine_settings.h"
#include "offload/host_optimizer.h"
#include "offload/pass_times.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/parameter_layout.h"
#include "offload/schedule/pass_shares.h"
#include "offload/schedule/update_policy.h"

namespace so {

class UpdateChooser {
 public:
  // `policy`: null: the one that goes with the settings' schedule. All references must outlive this.
  UpdateChooser(const EngineSettings& settings, const ParameterLayout& layout, std::span<const Bucket> buckets,
                const HostOptimizer& host, PassTimes& passes, std::unique_ptr<UpdatePolicy> policy);

  // The host-owned unit is a late one (HostSchedule::set_late()).
  void set_late(int unit);
  // Chooses for a step of `micro_batches`. Takes milliseconds.
  UpdateChoice choose(std::int64_t micro_batches);
  // PassTimes has measured a step.
  void measured(bool clipped_or_skipped);
  // Running means, 0 of what has not been measured yet.
  StepTimes times() const;

 private:
  const EngineSettings& settings_;
  const HostOptimizer& host_;
  PassTimes& passes_;
  const std::unique_ptr<UpdatePolicy> policy_;
  // Of each host-owned bucket: the unit in which it begins; UpdateFacts::streamed; whether it is late, empty: none is.
  std::vector<int> unit_of_;
  std::vector<std::int64_t> streamed_;
  std::vector<std::uint8_t> late_;
  BucketShares shares_;
  double clip_rate_ = 0;  // of the last few steps
};

}  // namespace so
