#include "offload/memory/unit_weights.h"

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
                         std::span<const ResidencyKind> residencies, const WeightOwners& owners)
    : layout_(layout), on_device_(device, layout, dtype, weight_slots(residencies)), by_unit_(residencies.size()) {
  const auto serve = [&](ResidencyKind kind, std::unique_ptr<WeightResidency> residency) {
    const std::vector<bool> units = units_of(residencies, kind);
    for (std::size_t unit = 0; unit < units.size(); ++unit)
      if (units[unit]) by_unit_[unit] = residency.get();
    kinds_.push_back(std::move(residency));
  };
  serve(ResidencyKind::resident, std::make_unique<ResidentWeights>(on_device_));
  serve(ResidencyKind::from_masters, std::make_unique<WeightsFromMasters>(on_device_, owners.cast_masters));
  serve(ResidencyKind::streamed,
        std::make_unique<WeightStream>(device, layout, on_device_, units_of(residencies, ResidencyKind::streamed),
                                       owners.final_weights));
}

void UnitWeights::prefetch() const {
  for (const auto& kind : kinds_) kind->prefetch();
}

void UnitWeights::drop_all() const {
  for (const auto& kind : kinds_) kind->drop_all();
}

std::int64_t UnitWeights::copies() const {
  std::int64_t copies = 0;
  for (const auto& kind : kinds_) copies += kind->copies();
  return copies;
}

}  // namespace so
