#include "offload/schedule/residency.h"

#include "base/error.h"
#include "offload/schedule/gathered_units.h"
#include "offload/schedule/streamed_units.h"

namespace so {

int device_places(ResidencyKind residency) {
  switch (residency) {
    case ResidencyKind::resident:
    case ResidencyKind::callers:
      return 0;
    case ResidencyKind::streamed:
      return stream_places;
    case ResidencyKind::from_masters:
      return 1;
    case ResidencyKind::gathered:
      return gather_places;
  }
  SO_CHECK(false, "residency {}", static_cast<int>(residency));
}

std::vector<ResidencyKind> residency_kinds(const ParameterLayout& layout, int device_units, ResidencyKind device_owned,
                                           int streamed, int gathered) {
  SO_CHECK(device_owned == ResidencyKind::resident || device_owned == ResidencyKind::from_masters,
           "weights that the device owns neither stream nor are they all gathered");
  SO_CHECK(gathered == 0 || (streamed == 0 && device_owned == ResidencyKind::resident),
           "{} units gathered, beside others that stream or are made of masters", gathered);
  const std::vector<bool> streams = streamed_units(layout.units(), device_units, streamed);
  const std::vector<bool> in_slices = gathered_units(layout.units(), gathered);
  std::vector<ResidencyKind> all(static_cast<std::size_t>(layout.units()), ResidencyKind::resident);
  for (int unit = 0; unit < layout.units(); ++unit) {
    if (layout.stays(unit)) continue;
    const auto u = static_cast<std::size_t>(unit);
    if (in_slices[u])
      all[u] = ResidencyKind::gathered;
    else if (unit < device_units)
      all[u] = layout.has_frozen(unit) ? ResidencyKind::resident : device_owned;
    else if (streams[u])
      all[u] = ResidencyKind::streamed;
  }
  return all;
}

std::vector<int> weight_slots(std::span<const ResidencyKind> residencies) {
  std::vector<int> slots(residencies.size(), -1);
  int first = 0;
  for (const ResidencyKind kind : {ResidencyKind::streamed, ResidencyKind::from_masters, ResidencyKind::gathered}) {
    int turn = 0;
    for (std::size_t unit = 0; unit < residencies.size(); ++unit)
      if (residencies[unit] == kind) slots[unit] = first + turn++ % device_places(kind);
    first += device_places(kind);
  }
  return slots;
}

}  // namespace so
