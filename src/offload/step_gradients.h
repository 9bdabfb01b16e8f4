// The gradients of a step: which of them the model has written, and for each unit the residency that keeps its gradient
// (memory/gradient_residency.h). The engine's thread makes all calls.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/accumulate.h"
#include "device/device.h"
#include "offload/exchange.h"
#include "offload/memory/gradient_residency.h"
#include "offload/memory/host_gradients.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/parameter_layout.h"
#include "offload/schedule/placement.h"

namespace so {

class StepGradients {
 public:
  // All references, and the buckets, outlive this.
  StepGradients(Device& device, const ParameterLayout& layout, const Placement& placement,
                std::span<const Bucket> buckets, const UnitBuckets& unit_buckets, Exchange& exchange,
                HostGradients& host);

  GradientResidency& of(int unit) { return *by_unit_[static_cast<std::size_t>(unit)]; }

  // The model writes the gradient of `count` joined parameters, whose unit has been required. Returns how it must.
  Accumulate write(int first, int count);
  bool written(int parameter) const { return written_[static_cast<std::size_t>(parameter)]; }
  // GradientResidency::complete()
  Stream& complete(int unit, bool last, Stream& stream);
  // Nothing is written yet: of a step that begins, or begins again.
  void restart();
  void drop();

  std::int64_t sums_brought() const;

 private:
  const ParameterLayout& layout_;
  std::vector<std::unique_ptr<GradientResidency>> kinds_;
  std::vector<GradientResidency*> by_unit_;
  // Of each parameter, whether its gradient is of this step; where micro-batches do not add up, of this micro-batch.
  std::vector<bool> written_;
};

}  // namespace so
