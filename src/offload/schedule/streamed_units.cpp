#include "offload/schedule/streamed_units.h"

#include "base/error.h"
#include "offload/schedule/parameter_layout.h"

namespace so {
namespace {

std::vector<int> units_that_may(int units, int device_units) {
  std::vector<int> may;
  for (int unit = device_units; unit < units; ++unit)
    if (!unit_stays(unit, units)) may.push_back(unit);
  return may;
}

}  // namespace

int most_streamed_units(int units, int device_units) {
  return static_cast<int>(units_that_may(units, device_units).size());
}

std::vector<bool> streamed_units(int units, int device_units, int count) {
  const std::vector<int> may = units_that_may(units, device_units);
  const auto most = static_cast<int>(may.size());
  SO_CHECK(count >= 0 && count <= most, "{} of {} units streamed", count, most);
  std::vector<bool> streamed(static_cast<std::size_t>(units), false);
  // The unit at which the running share of them passes a whole number; the last of each run, so that the forward pass
  // begins with units that are there.
  for (int i = 0; i < most; ++i)
    streamed[static_cast<std::size_t>(may[static_cast<std::size_t>(i)])] = (i + 1) * count / most > i * count / most;
  return streamed;
}

}  // namespace so
