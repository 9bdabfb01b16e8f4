#include "offload/schedule/owner_split.h"

#include "base/error.h"

namespace so {

double host_share(const ParameterLayout& layout, int device_units) {
  SO_CHECK(device_units >= 0 && device_units <= layout.units(), "{} of {} units", device_units, layout.units());
  if (device_units == layout.units()) return 0;
  const std::int64_t begin = layout.unit_range(device_units).begin;
  return static_cast<double>(layout.elements() - begin) / static_cast<double>(layout.elements());
}

int device_units_for_ratio(const ParameterLayout& layout, double ratio) {
  SO_CHECK(ratio >= 0 && ratio <= 1, "ratio {}", ratio);
  int units = 0;
  while (host_share(layout, units) > ratio) ++units;
  return units;
}

}  // namespace so
