// The table of rotation angles.
#pragma once

#include <cstdint>
#include <vector>

#include "model/spec.h"

namespace so {

// Frequencies of the rotary_dim/2 pairs, scaling applied. Computed in fp32 as transformers does, since the angle at a
// late position magnifies the last bit of a frequency.
std::vector<float> rope_frequencies(const RopeSpec& rope);

// [positions, 2, rotary_dim / 2]: cosines, then sines, for positions 0 .. positions - 1.
std::vector<float> rope_table(const RopeSpec& rope, std::int64_t positions);

}  // namespace so
