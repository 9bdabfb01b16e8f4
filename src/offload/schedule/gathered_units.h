// Which units' weights are cut into slices, one on each rank, and made whole for each use.
#pragma once

#include <vector>

namespace so {

// Units whose weights are gathered take turns in so many places of device memory: while one is worked with, the next is
// gathered.
inline constexpr int gather_places = 2;

// The units that may be gathered: those that need not stay on the device (unit_stays()), whoever owns them.
int most_gathered_units(int units);

// By unit: whether it is gathered, if `count` of them shall be, 0 to most_gathered_units(). They are spread evenly, as
// streamed ones are: a gather may begin when the gathered unit before is in use, so it has the time of the units
// between for itself. Gathers of units side by side would follow one another and leave the network idle for the rest of
// a pass.
std::vector<bool> gathered_units(int units, int count);

}  // namespace so
