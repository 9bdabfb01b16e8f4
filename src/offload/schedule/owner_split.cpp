#include "offload/schedule/owner_split.h"

#include "base/error.h"

namespace so {

double host_share(const ParameterLayout& layout, int device_units) {
  SO_CHECK(device_units >= 0 && device_units <= layout.units(), "{} of {} units", device_units, layout.units());
  std::int64_t host = 0;
  for (int unit = device_units; unit < layout.units(); ++unit) host += layout.trained_elements(unit);
  return host == 0 ? 0 : static_cast<double>(host) / static_cast<double>(layout.trained_elements());
}

int device_units_for_ratio(const ParameterLayout& layout, double ratio) {
  SO_CHECK(ratio >= 0 && ratio <= 1, "ratio {}", ratio);
  int units = 0;
  while (host_share(layout, units) > ratio) ++units;
  return units;
}

}  // namespace so
