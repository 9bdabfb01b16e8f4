#include "offload/schedule/owner_split.h"

#include "base/error.h"

namespace so {

double host_share(const ParameterLayout& layout, OwnerSplit owners) {
  SO_CHECK(owners.device_units >= 0 && owners.device_units <= layout.units(), "{} of {} units", owners.device_units,
           layout.units());
  std::int64_t host = 0;
  for (int unit = 0; unit < layout.units(); ++unit)
    if (!owners.on_device(unit)) host += layout.trained_elements(unit);
  return host == 0 ? 0 : static_cast<double>(host) / static_cast<double>(layout.trained_elements());
}

int device_units_for_ratio(const ParameterLayout& layout, double ratio, bool late_embedding) {
  SO_CHECK(ratio >= 0 && ratio <= 1, "ratio {}", ratio);
  int units = 0;
  while (units < layout.units() && host_share(layout, {units, late_embedding}) > ratio) ++units;
  return units;
}

}  // namespace so
