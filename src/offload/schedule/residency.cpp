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
    case ResidencyKind::gathered_from_masters:
      return gather_places;
  }
  SO_BUG("residency {}", static_cast<int>(residency));
}

std::vector<ResidencyKind> residency_kinds(const ParameterLayout& layout, int device_units, ResidencyKind device_owned,
                                           int streamed, int gathered, ResidencyKind host_owned) {
  SO_CHECK(device_owned == ResidencyKind::resident || device_owned == ResidencyKind::from_masters,
           "weights that the device owns neither stream nor are they all gathered");
  SO_CHECK(host_owned == ResidencyKind::resident || (host_owned == ResidencyKind::from_masters && gathered > 0),
           "weights that the host owns are made of masters for gathers alone");
  SO_CHECK(gathered == 0 || streamed == 0, "{} units gathered, beside {} that stream", gathered, streamed);
  const std::vector<bool> streams = streamed_units(layout.units(), device_units, streamed);
  const std::vector<bool> in_slices = gathered_units(layout.units(), gathered);
  std::vector<ResidencyKind> all(static_cast<std::size_t>(layout.units()), ResidencyKind::resident);
  for (int unit = 0; unit < layout.units(); ++unit) {
    if (layout.stays(unit)) continue;
    const auto u = static_cast<std::size_t>(unit);
    const bool on_device = unit < device_units;
    const bool casts =
        !layout.has_frozen(unit) && (on_device ? device_owned : host_owned) == ResidencyKind::from_masters;
    if (in_slices[u])
      all[u] = casts ? ResidencyKind::gathered_from_masters : ResidencyKind::gathered;
    else if (casts && on_device && gathered == 0)
      all[u] = ResidencyKind::from_masters;
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
      if (residencies[unit] == kind || (is_gathered(kind) && is_gathered(residencies[unit])))
        slots[unit] = first + turn++ % device_places(kind);
    first += device_places(kind);
  }
  return slots;
}

}  // namespace so
