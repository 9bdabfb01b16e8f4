// Weights that live in memory of the caller's, such as a model's of another framework: a place and a format for each
// parameter. Their owner writes new ones into host memory of this object, and they come to the caller's places when a
// unit is required: so the caller finds its weights unchanged until it asks, whatever was computed ahead of the
// verdict.
#pragma once

#include <memory>
#include <vector>

#include "offload/memory/device_weights.h"
#include "offload/memory/weight_residency.h"
#include "offload/schedule/parameter_layout.h"
#include "optim/engine_ops.h"

namespace so {

class CallerWeights final : public WeightResidency {
 public:
  // `kept`: by unit. `weights` are in the caller's memory if there is such a unit, and outlive this. Host memory is
  // pinned, booked as "new weights"; contents are unspecified until written. At first the caller's places hold the
  // weights.
  CallerWeights(Device& device, const ParameterLayout& layout, const DeviceWeights& weights,
                const std::vector<bool>& kept);

  // Enqueues the copies of what has changed since the last time. What they read may be overwritten once a gradient that
  // is enqueued on the same stream afterwards is complete.
  void require(int unit, Stream& stream) override;
  void release(int, Stream&) override {}
  bool here(int unit) const override { return here_[static_cast<std::size_t>(unit)]; }
  void place(Stream& stream, Range part, const void* weights) override;
  void drop(int unit) override { here_[static_cast<std::size_t>(unit)] = false; }
  void drop_all() override { here_.assign(here_.size(), false); }
  std::byte* host_memory(std::int64_t element) const override;
  std::int64_t copies() const override { return copies_; }

 private:
  const ParameterLayout& layout_;
  const DeviceWeights& weights_;
  const std::unique_ptr<EngineOps> ops_;
  std::vector<bool> here_;           // by unit: the caller's places hold its weights
  std::vector<std::size_t> starts_;  // by unit, in bytes of the memory
  Buffer memory_;
  std::int64_t copies_ = 0;
};

}  // namespace so
