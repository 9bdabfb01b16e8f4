// Where the gradients of each unit are on the device. Decided here, without a device, for the engine, for the plan's
// arithmetic and for the simulator.
#pragma once

#include <vector>

namespace so {

// Gradients that leave their place before the step is decided take turns in so many places of device memory: those that
// move to host memory, and with several ranks those that are in slices.
inline constexpr int gradient_slots = 2;

// With several ranks a gradient that moves leaves from this rank's slices of it, which take turns in so many places:
// more than two, since a slice in fp32 may leave more slowly than the next backward passes come.
inline constexpr int slice_slots = 4;

// By unit; -1: a place of its own.
struct GradientPlaces {
  std::vector<int> slots;  // of gradient_slots, the one in which the model writes the gradient
  // Whether each micro-batch's gradient is reduced to this rank's slices of it: of units that are gathered, and of
  // those that move. Of none with one rank.
  std::vector<bool> sliced;
  std::vector<int> slice_slots;  // of slice_slots, the one that the slices have
  // The place that a gradient leaves when it moves: slots with one rank, else slice_slots.
  std::vector<int> moving;
};

// `trained`: by unit, whether any of it is. Units before `device_units` are the device's. `move`: the gradients of
// trained units that the host owns, and that do not stay, move to host memory. `gathered`: units of either owner
// (gathered_units.h).
GradientPlaces gradient_places(const std::vector<bool>& trained, int device_units, bool move, int gathered,
                               bool several_ranks);

}  // namespace so
