#include "offload/schedule/gathered_units.h"

#include "offload/schedule/streamed_units.h"

namespace so {

int most_gathered_units(int units) { return most_streamed_units(units, 0); }

std::vector<bool> gathered_units(int units, int count) { return streamed_units(units, 0, count); }

}  // namespace so
