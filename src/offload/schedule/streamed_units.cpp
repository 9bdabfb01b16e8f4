#include "offload/schedule/streamed_units.h"

#include <algorithm>

#include "base/error.h"

namespace so {

int most_streamed_units(int units, int device_units) {
  const int first = std::max(1, device_units), last = units - 1;
  return std::max(0, last - first);
}

std::vector<bool> streamed_units(int units, int device_units, int count) {
  const int may = most_streamed_units(units, device_units), first = std::max(1, device_units);
  SO_CHECK(count >= 0 && count <= may, "{} of {} units streamed", count, may);
  std::vector<bool> streamed(static_cast<std::size_t>(units), false);
  // The unit at which the running share of them passes a whole number; the last of each run, so that the forward pass
  // begins with units that are there.
  for (int i = 0; i < may; ++i) streamed[static_cast<std::size_t>(first + i)] = (i + 1) * count / may > i * count / may;
  return streamed;
}

}  // namespace so
