// The weights of all units as the engine meets them: an array on the device, and for each unit the residency that
// brings its weights there.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "offload/memory/device_weights.h"
#include "offload/memory/gathered_weights.h"
#include "offload/memory/weight_residency.h"
#include "offload/memory/weights_from_masters.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/pass_order.h"
#include "offload/schedule/placement.h"

namespace so {

// Residencies ask the optimizers these questions.
struct WeightOwners {
  std::function<bool(int unit)> final_weights;  // whether a host-owned unit's weights are final; never waits
  WeightsFromMasters::Cast cast_masters;        // enqueues the cast of a unit's masters, which are final
  UnitGathers gathers;                          // with several ranks
};

class UnitWeights {
 public:
  // `places`: DeviceWeights'. `buckets` outlive this.
  UnitWeights(Device& device, const ParameterLayout& layout, DType dtype, std::span<const WeightPlace> places,
              const Placement& placement, std::span<const Bucket> buckets, const WeightOwners& owners);

  WeightResidency& of(int unit) const { return *by_unit_[static_cast<std::size_t>(unit)]; }
  // The unit that has this element.
  WeightResidency& at(std::int64_t element) const { return of(layout_.unit_of(element)); }
  const DeviceWeights& on_device() const { return on_device_; }

  // Where the owner of an element of this rank's slices puts its new weight on the device; those of the rest of the
  // bucket's slice lie behind.
  std::byte* own_at(std::int64_t element) const {
    std::byte* const slice = at(element).slice(element);
    return slice ? slice : on_device_.at(element);
  }

  // Whether the unit's weights are made of their masters, so that the element's owner puts none there.
  bool follows_masters(std::int64_t element) const {
    const int unit = layout_.unit_of(element);
    return of(unit).follows_masters(unit);
  }

  // body(part, weights) for the parts of `range`, which lies in this rank's slice of a bucket, whose weights are
  // adjacent where their owner puts new ones.
  template <class Body>
  void for_each_part(Range range, const Body& body) const {
    if (on_device_.are_callers()) return on_device_.for_each_part(range, body);
    body(range, Tensor(own_at(range.begin), on_device_.dtype(), {range.size()}));
  }

  // The model has required or released a unit, as the unit's residency was told: what comes next is brought.
  void required(int unit);
  void released();
  // A backward pass has ended.
  void end_pass() { order_.end(); }
  void finish_prefetch() const;
  void drop_all() const;
  // How often units of a kind have been brought to the device.
  std::int64_t copies(ResidencyKind kind) const;

 private:
  void prefetch() const;

  const ParameterLayout& layout_;
  DeviceWeights on_device_;
  std::vector<std::unique_ptr<WeightResidency>> kinds_;  // by ResidencyKind
  std::vector<WeightResidency*> by_unit_;
  PassOrder order_;
};

}  // namespace so
