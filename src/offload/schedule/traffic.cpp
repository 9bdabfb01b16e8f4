#include "offload/schedule/traffic.h"

#include "base/error.h"

namespace so {

Traffic traffic_of(const UnitPlacement& row, const UnitElements& unit, const ElementBytes& bytes) {
  constexpr double master = 4;
  const auto trained = static_cast<double>(unit.trained), frozen = static_cast<double>(unit.frozen);
  const bool on_host = row.owner == Owner::host;
  Traffic traffic;
  if (on_host) traffic.gradients = trained * bytes.gradient;
  if (row.moved) traffic.sum = trained * bytes.sum;
  switch (row.weights) {
    case ResidencyKind::resident:
    case ResidencyKind::gathered:
    case ResidencyKind::callers:
      if (on_host) traffic.weights = trained * bytes.weight;
      return traffic;
    case ResidencyKind::streamed:
      traffic.use = (trained + frozen) * bytes.stored;
      return traffic;
    case ResidencyKind::from_masters:
      traffic.cast = trained * (master + bytes.stored);
      return traffic;
    case ResidencyKind::streamed_from_masters:
    case ResidencyKind::gathered_from_masters:
      traffic.cast = trained * (master + bytes.stored);
      if (on_host) traffic.use = trained * master;
      return traffic;
  }
  SO_BUG("residency {}", static_cast<int>(row.weights));
}

}  // namespace so
