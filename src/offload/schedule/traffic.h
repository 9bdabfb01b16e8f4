// What a row of a placement costs: bytes over the link and of the device's memory. The bound of a step, the simulator
// and the price of a unit's work all read it here.
#pragma once

#include <compare>
#include <cstdint>

#include "offload/schedule/placement.h"

namespace so {

// Bytes of an element, by what it is.
struct ElementBytes {
  double gradient = 2, weight = 2;  // on the link and in the host's update, which cast or do not
  double stored = 2;                // a weight as it lies, so as it streams and is gathered
  double sum = 4;                   // a gradient that is added up
  double state = 12;                // fp32 master weight and two moments
  // AdamW reads the old state and a gradient, and writes the new state and a weight.
  double update() const { return 2 * state + gradient + weight; }
  auto operator<=>(const ElementBytes&) const = default;
};

// The elements of a unit that this rank updates, and those beside them that are frozen.
struct UnitElements {
  std::int64_t trained = 0, frozen = 0;
};

struct Traffic {
  double use = 0;        // to the device for each use that does not find the weights there
  double cast = 0;       // of the device's memory for each such use: masters read, weights written
  double weights = 0;    // to the device once a step: new weights
  double gradients = 0;  // to the host once a step
  double sum = 0;        // either way for each further micro-batch
};
Traffic traffic_of(const UnitPlacement& row, const UnitElements& unit, const ElementBytes& bytes);

}  // namespace so
