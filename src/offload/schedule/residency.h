// Where the weights of each unit are between their uses, and its gradients before the host uses them. Decided here,
// without a device; a class of offload/memory carries each kind of weights out (weight_residency.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/schedule/parameter_layout.h"

namespace so {

enum class ResidencyKind : std::uint8_t {
  resident,      // on the device, in a place of their own
  streamed,      // in host memory; they come to the device ahead of each use
  from_masters,  // nowhere: each use casts them from the fp32 master weights, which the device owns
  gathered,      // in slices, one on the device of each rank; they are gathered ahead of each use
  callers,       // in memory of the caller's, to which new ones are copied from the host's when they are required
  gathered_from_masters,  // nowhere: each rank casts its slice from its master weights ahead of each gather; those
                          // of the host travel to the device for that
};
// Whether they come from all ranks for each use.
constexpr bool is_gathered(ResidencyKind kind) {
  return kind == ResidencyKind::gathered || kind == ResidencyKind::gathered_from_masters;
}

// Where the gradients of host-owned units that do not stay are once they are complete.
enum class GradientResidency : std::uint8_t {
  resident,  // on the device, until the host takes them
  moved,     // in host memory, at once; a sum comes back for each further micro-batch (offload/moved_gradients.h)
};

// Units of a kind take turns in so many places of device memory; 0: each has its own.
int device_places(ResidencyKind residency);

// Returns each unit's kind. With one rank, units before `device_units` have `device_owned` (resident if a parameter is
// frozen, since it has no master weight), `streamed` of the others stream (streamed_units.h), and the rest is resident.
// With several ranks `gathered` of all units are gathered (gathered_units.h), from masters if their owner's kind
// (`device_owned`, `host_owned`) is from_masters; the others are resident, since no rank has all of their masters, and
// none stream. Units that stay are always resident.
std::vector<ResidencyKind> residency_kinds(const ParameterLayout& layout, int device_units, ResidencyKind device_owned,
                                           int streamed, int gathered = 0,
                                           ResidencyKind host_owned = ResidencyKind::resident);

// By unit: the number of the place that it takes in turn with others, -1 for a place of its own (unit_array.h).
std::vector<int> weight_slots(std::span<const ResidencyKind> residencies);

}  // namespace so
