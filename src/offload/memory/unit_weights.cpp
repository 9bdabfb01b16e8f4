#include "offload/memory/unit_weights.h"

#include <utility>

#include "base/error.h"
#include "offload/memory/caller_weights.h"
#include "offload/memory/resident_weights.h"
#include "offload/memory/weight_stream.h"

namespace so {
namespace {

std::vector<bool> units_of(std::span<const ResidencyKind> residencies, ResidencyKind kind) {
  std::vector<bool> units;
  for (const ResidencyKind residency : residencies) units.push_back(residency == kind);
  return units;
}

}  // namespace

UnitWeights::UnitWeights(Device& device, const ParameterLayout& layout, DType dtype,
                         std::span<const WeightPlace> places, std::span<const ResidencyKind> residencies,
                         std::span<const Bucket> buckets, const WeightOwners& owners, PassOrder order)
    : layout_(layout),
      on_device_(device, layout, dtype, weight_slots(residencies), places),
      by_unit_(residencies.size()),
      order_(std::move(order)) {
  const auto serve = [&](ResidencyKind kind, std::unique_ptr<WeightResidency> residency) {
    SO_CHECK(kinds_.size() == static_cast<std::size_t>(kind), "residency {} in turn {}", static_cast<int>(kind),
             kinds_.size());
    for (std::size_t unit = 0; unit < residencies.size(); ++unit)
      if (residencies[unit] == kind || (is_gathered(kind) && is_gathered(residencies[unit])))
        by_unit_[unit] = residency.get();
    kinds_.push_back(std::move(residency));
  };
  serve(ResidencyKind::resident, std::make_unique<ResidentWeights>(on_device_));
  serve(ResidencyKind::streamed,
        std::make_unique<WeightStream>(device, layout, on_device_, units_of(residencies, ResidencyKind::streamed),
                                       owners.final_weights));
  serve(ResidencyKind::from_masters, std::make_unique<WeightsFromMasters>(on_device_, owners.cast_masters));
  serve(ResidencyKind::gathered,
        std::make_unique<GatheredWeights>(device, layout, on_device_, buckets, residencies, owners.gathers));
  serve(ResidencyKind::callers,
        std::make_unique<CallerWeights>(device, layout, on_device_, units_of(residencies, ResidencyKind::callers)));
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
