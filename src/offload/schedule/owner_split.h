// How the optimizer state is split between the device and the host.
#pragma once

#include "offload/schedule/parameter_layout.h"

namespace so {

// The device owns the first units' state and the host the others'. The host may have the embedding's too, which is unit
// 0, whatever the device owns: a forward pass needs some rows of it first and the rest never, so the host updates it
// when nothing else is left to do, above all while the device is at the head, where otherwise it would wait for the
// first gradient (offload/late_rows.h).
struct OwnerSplit {
  int device_units = 0;         // units before this one are the device's
  bool late_embedding = false;  // but for unit 0, which is the host's

  OwnerSplit(int units = 0, bool late = false) : device_units(units), late_embedding(late) {}
  bool on_device(int unit) const { return unit < device_units && !(late_embedding && unit == 0); }
  bool operator==(const OwnerSplit&) const = default;
};

// The share of the optimizer state (elements) that the host has.
double host_share(const ParameterLayout& layout, OwnerSplit owners);
// The fewest device-owned units for which the host's share is at most `ratio`, in [0, 1]; all if none are enough, as
// may be with a late embedding.
int device_units_for_ratio(const ParameterLayout& layout, double ratio, bool late_embedding = false);

}  // namespace so
