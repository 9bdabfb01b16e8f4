// The weights of all units as the engine meets them: an array on the device, and for each unit the residency that
// brings its weights there.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "offload/memory/device_weights.h"
#include "offload/memory/weight_residency.h"
#include "offload/memory/weights_from_masters.h"
#include "offload/schedule/residency.h"

namespace so {

// Residencies ask the optimizers these questions.
struct WeightOwners {
  std::function<bool(int unit)> final_weights;  // whether a host-owned unit's weights are final; never waits
  WeightsFromMasters::Cast cast_masters;        // enqueues a device-owned unit's cast
};

class UnitWeights {
 public:
  UnitWeights(Device& device, const ParameterLayout& layout, DType dtype, std::span<const ResidencyKind> residencies,
              const WeightOwners& owners);

  WeightResidency& of(int unit) const { return *by_unit_[static_cast<std::size_t>(unit)]; }
  // The unit that has this element.
  WeightResidency& at(std::int64_t element) const { return of(layout_.unit_of(element)); }
  const DeviceWeights& on_device() const { return on_device_; }

  void prefetch() const;
  void drop_all() const;
  std::int64_t copies() const;

 private:
  const ParameterLayout& layout_;
  DeviceWeights on_device_;
  std::vector<std::unique_ptr<WeightResidency>> kinds_;
  std::vector<WeightResidency*> by_unit_;
};

}  // namespace so
