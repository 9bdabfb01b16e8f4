// Which units' weights lie in host memory and stream to the device ahead of each use, rather than stay on it.
#pragma once

#include <vector>

namespace so {

// Units whose weights stream take turns in so many places of device memory: while one is worked with, the next arrives.
inline constexpr int stream_places = 2;

// The units that may stream: those that the host owns and that need not stay on the device (unit_stays()).
int most_streamed_units(int units, int device_units);

// By unit: whether it streams, if `count` of them shall, 0 to most_streamed_units(). Spread evenly, so that the link
// has the time of the units between for each.
std::vector<bool> streamed_units(int units, int device_units, int count);

}  // namespace so
