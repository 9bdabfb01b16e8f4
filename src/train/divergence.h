// A run that went wrong: numbers that are not finite are found, named where they began, and kept out of what is saved.
#pragma once

#include <cstdint>
#include <string>

#include "device/arena.h"
#include "model/decoder/decoder.h"
#include "offload/engine.h"

namespace so {

// Where the numbers of a step whose loss is not finite began to be so, for a message: the first activation in the order
// of the forward pass, which is run again, and a weight of that layer if one is not finite itself. `losses` is
// overwritten. Empty if all is finite this time, or if the arena has no room for the search. Waits.
std::string find_non_finite_activation(const Decoder& decoder, Stream& stream, const DeviceBatch& batch,
                                       OffloadEngine& engine, Arena& arena, Tensor losses);

// "steps 12 to 21 (10 in a row) were skipped": of a streak that ends with `last`.
std::string describe_streak(std::int64_t last, std::int64_t in_a_row);

}  // namespace so
