#include "offload/memory/unit_weights.h"

#include <utility>

#include "base/error.h"
#include "offload/memory/caller_weights.h"
#include "offload/memory/resident_weights.h"
#include "offload/memory/weight_stream.h"

namespace so {
namespace {

std::vector<bool> units_of(const Placement& placement, ResidencyKind kind) {
  std::vector<bool> units;
  for (const UnitPlacement& unit : placement.units) units.push_back(unit.weights == kind);
  return units;
}

}  // namespace

UnitWeights::UnitWeights(Device& device, const ParameterLayout& layout, DType dtype,
                         std::span<const WeightPlace> places, const Placement& placement,
                         std::span<const Bucket> buckets, const WeightOwners& owners)
    : layout_(layout),
      on_device_(device, layout, dtype, turns_of(placement).weights, places),
      by_unit_(placement.units.size()),
      order_(layout.units(), layout.first_trained_unit(), placement.remade_inputs()) {
  const auto serve = [&](ResidencyKind kind, std::unique_ptr<WeightResidency> residency) {
    SO_CHECK(kinds_.size() == static_cast<std::size_t>(kind), "residency {} in turn {}", static_cast<int>(kind),
             kinds_.size());
    for (std::size_t unit = 0; unit < by_unit_.size(); ++unit) {
      const ResidencyKind weights = placement.units[unit].weights;
      if (weights == kind || (is_gathered(kind) && is_gathered(weights)) || (is_streamed(kind) && is_streamed(weights)))
        by_unit_[unit] = residency.get();
    }
    kinds_.push_back(std::move(residency));
  };
  serve(ResidencyKind::resident, std::make_unique<ResidentWeights>(on_device_));
  serve(ResidencyKind::streamed,
        std::make_unique<WeightStream>(device, layout, on_device_, placement.units,
                                       WeightStream::Sources{owners.final_weights, owners.cast_masters}));
  serve(ResidencyKind::from_masters, std::make_unique<WeightsFromMasters>(on_device_, owners.cast_masters));
  serve(ResidencyKind::gathered,
        std::make_unique<GatheredWeights>(device, layout, on_device_, buckets, placement.units, owners.gathers));
  serve(ResidencyKind::callers,
        std::make_unique<CallerWeights>(device, layout, on_device_, units_of(placement, ResidencyKind::callers)));
}

void UnitWeights::prefetch() const {
  for (const auto& kind : kinds_) kind->prefetch(order_);
}

void UnitWeights::required(int unit) {
  order_.require(unit);
  prefetch();
}

void UnitWeights::released() {
  order_.release();
  prefetch();
}

void UnitWeights::finish_prefetch() const {
  for (const auto& kind : kinds_) kind->finish_prefetch();
}

void UnitWeights::drop_all() const {
  for (const auto& kind : kinds_) kind->drop_all();
}

std::int64_t UnitWeights::copies(ResidencyKind kind) const { return kinds_[static_cast<std::size_t>(kind)]->copies(); }

}  // namespace so
